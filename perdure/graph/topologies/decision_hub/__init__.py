"""Eight nodes around one decision, and four of memory that hang off it: nothing else decides where a turn goes (S3)."""
