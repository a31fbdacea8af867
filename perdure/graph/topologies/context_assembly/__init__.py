"""A safety check first, then context put together in phases beside a reading of the tone, then the answer (S1)."""
