"""Several processes that train one net: ranks, spawn, and the exchange of gradients."""
