"""Streams of events and tokens for readers, and traces of turns that have ended."""
