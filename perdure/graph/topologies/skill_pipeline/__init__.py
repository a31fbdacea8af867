"""Two model phases around a skill: draft, pick and inject skills, have gated work approved, synthesise (S0)."""
