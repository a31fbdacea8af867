"""Postgres and Valkey. All SQL is in this package."""
