"""The connection to Temporal: wake signals, task queues, and the histories of turns."""
