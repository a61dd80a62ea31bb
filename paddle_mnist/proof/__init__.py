"""Whether a program that calls `fit` ends with the same bits after it was killed."""
