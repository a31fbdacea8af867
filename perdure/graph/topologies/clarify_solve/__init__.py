"""Clarify, plan, transform, solve, validate, draw: on the server, or without moving the client's data."""
