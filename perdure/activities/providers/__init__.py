"""The models that a turn can call, behind one protocol."""
