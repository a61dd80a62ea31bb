"""Fluid's functions, for today's models."""
