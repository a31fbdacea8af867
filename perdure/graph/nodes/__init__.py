"""Node bodies that several topologies share."""
