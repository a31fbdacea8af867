"""A fictional payments service: a separate process with its own store, which counts the effects that happened."""
