"""Topologies as values, compiled to LangGraph. This package is pure: it knows neither Temporal nor I/O."""
