"""Converts texts to vectors, if an embedding model is available."""
