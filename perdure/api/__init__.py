"""The HTTP API, with its server-sent events."""
