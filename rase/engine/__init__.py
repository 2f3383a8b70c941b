"""The engine: KV cache pages, decoding one sequence, sampling and the generation loop."""
