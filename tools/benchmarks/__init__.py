"""What `tools/benchmark.py` measures: each module has a `measure` and a `table` of its report.

A `table` returns one table, or several by the marks of their places in the pages. The first line of
a module's docstring is its line in the command's help.
"""
