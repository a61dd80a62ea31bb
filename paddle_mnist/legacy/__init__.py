"""Older ways of Paddle: Fluid's calls, and parameter servers."""
