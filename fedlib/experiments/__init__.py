"""Experiments: validated settings in, stored runs out. Notebooks enter the library here."""
