"""The edges: everything that a turn does outside its graph, claimed, done and settled."""
