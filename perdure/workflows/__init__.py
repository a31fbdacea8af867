"""The two workflows of a turn: `TurnRun` runs its graph, `TurnWait` waits for people."""
