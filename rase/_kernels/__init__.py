"""Compiled kernels: the one place with machine code. Nothing here imports the rest of rase."""
