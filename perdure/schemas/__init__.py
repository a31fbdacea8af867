"""The responses of the API as Pydantic models, shared by the client, the SDK, the pages and the command line."""
