"""Approvals: requests, verdicts, decisions, assignments, views."""
