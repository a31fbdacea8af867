"""Postgres and Valkey. SQL lives here and nowhere else."""
