"""GGUF model files: a bounded reader, the table of tensor formats, and their plain dequantization."""
