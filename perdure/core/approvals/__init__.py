"""Requests to people: which calls need one, who decides, and whether a decision still counts."""
