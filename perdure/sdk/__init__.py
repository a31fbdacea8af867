"""What an app imports; `perdure` itself shows its names."""
