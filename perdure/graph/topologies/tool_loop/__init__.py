"""A model and its tools in a loop, with toolsets that are loaded on demand and an approval for each call."""
