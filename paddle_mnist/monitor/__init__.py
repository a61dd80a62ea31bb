"""Looks into a net while it trains: its layers and gradients, what is wrong, where time goes."""
