"""Losses, schedules, a moving average of weights, fast loops: parts of a training for any net."""
