"""The port between models and hardware: typed ops over named buffers, built once and checked."""
