"""Inspect a net while it trains: statistics of layers and gradients, diagnosis, profiling."""
