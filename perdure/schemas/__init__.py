"""The responses of the API as Pydantic models, shared by the API, the client, the pages and the command line."""
