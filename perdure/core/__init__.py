"""Pure decisions: functions from values to a value. Any package may import them; they import only contracts."""
