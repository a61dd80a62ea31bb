"""What benchmarks and reproduction share: commands that they run, and the data files they read."""
