"""The tools that a worker can run: the platform's own and those of the apps."""
