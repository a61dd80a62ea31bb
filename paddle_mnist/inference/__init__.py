"""Exported models: how they are written, checked and run."""
