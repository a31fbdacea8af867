"""A simulated cluster behind a real MCP server: Kubernetes, Helm, Argo CD and Jenkins, kept in one file."""
