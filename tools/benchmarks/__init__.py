"""What `tools/benchmark.py` measures: each module has a `measure` and a `table` of its report."""
