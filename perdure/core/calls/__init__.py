"""Model and tool calls: who may do one, how often it is tried, what it is given."""
