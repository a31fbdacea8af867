"""The reference turn without Perdure's engine: two Temporal workflows written by hand, and plain LangGraph."""
