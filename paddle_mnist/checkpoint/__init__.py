"""Checkpoints: when to save (`policy`), the files (`store`), what is in them (`contents`), and
reading them without running them (`safe_load`). Only `contents` and `checkpointer` need paddle.
"""
