"""Clarify, plan, transform, solve, validate, draw: on the server, or with the data left where it is (S4)."""
