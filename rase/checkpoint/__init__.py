"""Checkpoints in the layout of transformers, told in GGUF's words: keys, tensor names, row orders."""
