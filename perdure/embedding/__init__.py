"""Texts to vectors, where a model for it is there."""
