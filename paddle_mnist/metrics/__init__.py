"""Metrics of a training: how they add up, and where they are written."""
