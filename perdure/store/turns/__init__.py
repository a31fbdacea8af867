"""Conversations and the life of a turn."""
