"""What the API answers, as Pydantic models: shared by the API, the client, the pages and the command line."""
