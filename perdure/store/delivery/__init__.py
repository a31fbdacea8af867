"""The outbox and webhooks."""
