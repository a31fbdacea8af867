"""Model and tool calls: which attempt can run a call, how often it is retried, and its arguments."""
