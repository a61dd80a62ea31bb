"""Find, save and restore the state on which training depends, beside the weights."""
