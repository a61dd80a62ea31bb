"""Looks into a net while it trains: layers, gradients, faults, and where time goes."""
