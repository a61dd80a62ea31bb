"""What `tools/benchmark.py` measures: a module a table, each with its `BENCHMARK`."""
