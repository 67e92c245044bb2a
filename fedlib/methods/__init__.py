"""Federated methods, one file each, grouped by the paper or the family that they come from."""
