"""`perdure approvals`: the queue, one request, decisions, claims and assignments."""
