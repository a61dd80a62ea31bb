"""The detector of non-digits: pictures drawn by code, its training, what it catches."""
