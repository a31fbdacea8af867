"""Web pages for people: a client of the API, drawn on the server."""
