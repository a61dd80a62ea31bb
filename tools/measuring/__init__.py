"""Shared by benchmarks and reproduction: commands that they run, and data files they read."""
