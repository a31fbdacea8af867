"""Approval requests: which calls need one, who can decide, and whether a decision is still valid."""
