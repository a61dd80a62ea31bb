"""Draw figures of any run, without a display, from `metrics.jsonl` and confusion matrices."""
