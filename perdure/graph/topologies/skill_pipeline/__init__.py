"""Two model phases around a skill: draft, select and inject skills, approve gated work, synthesize."""
