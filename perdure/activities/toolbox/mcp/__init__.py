"""Tools of MCP servers: sessions, transports, what a server lists and returns."""
