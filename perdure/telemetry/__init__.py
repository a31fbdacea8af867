"""Traces, metrics and heartbeats. Turns never depend on them; traces are built after a turn has ended."""
