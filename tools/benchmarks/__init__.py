"""The tables of `tools/benchmark.py`: each module has some in its `BENCHMARKS`."""
