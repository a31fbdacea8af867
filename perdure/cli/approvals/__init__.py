"""`perdure approvals`: the queue, one request, decisions, and whose they are."""
