"""The tutorial's claims, one by one: what is trained, what is measured, and what came of it."""
