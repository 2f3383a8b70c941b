"""Reads safetensors files, and folders of them in the layout of transformers."""
