"""Decisions about documents of memory: what is found, shown, written and shared. Pure, as all of perdure/core/."""
