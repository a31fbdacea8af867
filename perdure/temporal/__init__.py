"""Between Postgres and Temporal: deliver wake-ups, and finish turns whose workflow is gone."""
