"""Recorded turns, replayed against today's workflows. README.md says when to record."""
