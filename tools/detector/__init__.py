"""The detector of what is no digit: pictures drawn by code, its training, what it catches."""
