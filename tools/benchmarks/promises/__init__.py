"""The promises of frameworks: `experiments` compares them, by the scripts beside it."""
