"""Pictures drawn by code: digits on paper of many kinds, and what is no digit."""
