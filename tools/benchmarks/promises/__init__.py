"""The promises of frameworks: `measuring` compares them, in scripts that stand beside it."""
