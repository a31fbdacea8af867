"""The event log, live tokens and the subscriptions that wake readers."""
