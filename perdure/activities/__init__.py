"""Activities: everything that a turn does outside its graph. Each effect is claimed, done and settled."""
