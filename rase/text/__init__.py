"""Text: tokenizers, chat templates and what a stream may show."""
