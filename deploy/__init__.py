"""Running Perdure elsewhere: the image, and small programs beside it."""
