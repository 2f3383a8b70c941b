"""rase: a local LLM engine that gives the same bits for the same request."""

__version__ = "0.1.0"
