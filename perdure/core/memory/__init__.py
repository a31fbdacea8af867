"""Rules of memory: search, display, writes and promotion. Like all of perdure/core/, they are pure functions."""
