"""Several processes that train one net: who they are, how they start, what they exchange."""
