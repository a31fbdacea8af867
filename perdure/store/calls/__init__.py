"""Model calls, tool calls, effects and assembled context in the ledger."""
