"""Handwritten digits: the data, the net, the recipes, and the training that joins them."""
