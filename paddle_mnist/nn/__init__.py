"""Losses, schedules, a moving average of weights, and compiled nets, for any model."""
