"""Losses, schedules, a moving average of weights, compiled nets: for any training."""
