"""A model and its tools in a loop: toolsets loaded as they are needed, an approval for each call (S2)."""
