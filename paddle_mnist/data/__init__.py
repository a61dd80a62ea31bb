"""Batches of any dataset: their order, their position in an epoch, and their shards."""
