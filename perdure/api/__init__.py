"""HTTP and server-sent events: the outside contract over the store."""
