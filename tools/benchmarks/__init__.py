"""What `tools/benchmark.py` measures, each thing in a module with `measured` and `table`."""
