"""Values that cross a boundary, and the names both sides agree on. Imports no other package of Perdure."""
