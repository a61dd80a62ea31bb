"""Optimizers, losses, a moving average of weights, seeding: parts of a training for any net."""
