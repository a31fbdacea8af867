"""Values that cross a boundary, and the names both sides agree on. Imports nothing of ours."""
