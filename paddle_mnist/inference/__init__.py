"""Exporting models and running exported models, for any net."""
