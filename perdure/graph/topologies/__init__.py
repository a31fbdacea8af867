"""The topologies that ship, one package each. `spec` has the node ids, edges, routes and state; the other modules have
the nodes."""
