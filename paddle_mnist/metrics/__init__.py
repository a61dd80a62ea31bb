"""Metrics of a training: how they are aggregated, and where they are written."""
