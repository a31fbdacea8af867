"""The `perdure` command line: a client of the API, and the one command that starts the embedded stack."""
