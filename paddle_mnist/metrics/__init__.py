"""Metrics of a run: how they are added up, and where they are written."""
