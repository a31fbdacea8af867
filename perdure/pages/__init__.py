"""Web pages for users: a client of the API, rendered on the server."""
