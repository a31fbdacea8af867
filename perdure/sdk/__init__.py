"""The interface for apps; `perdure` itself exports its names."""
