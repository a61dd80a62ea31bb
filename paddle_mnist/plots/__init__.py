"""Curves and histograms of any training, drawn from `metrics.jsonl`."""
