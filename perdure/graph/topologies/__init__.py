"""The topologies that ship, one package each: spec (nodes and edges), routes, state."""
