"""Node parts that topologies share."""
