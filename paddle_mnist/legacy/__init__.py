"""The functions of Fluid, for the models of today."""
