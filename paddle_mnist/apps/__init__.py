"""Serve pages for a browser: one to draw digits on, and VisualDL's dashboard."""
