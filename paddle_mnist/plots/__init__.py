"""Figures of any training, drawn without a display: from `metrics.jsonl`, counts and tables."""
