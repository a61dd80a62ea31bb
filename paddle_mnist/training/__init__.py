"""The training loop, evaluation, and the run directory."""
