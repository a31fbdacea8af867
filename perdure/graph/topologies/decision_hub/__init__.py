"""Eight nodes around one decision, and four memory nodes. Only the deciding node chooses the next step of a turn."""
