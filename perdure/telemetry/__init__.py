"""Traces of turns, made when they are over, for whoever wants to look; nothing of a turn depends on them."""
