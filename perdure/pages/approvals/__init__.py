"""The pages of approvals: the inbox, one request, decisions."""
