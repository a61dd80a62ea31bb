"""The tables of `tools/benchmark.py`, and how commands and trainings are measured."""
