"""`python -m bench`: the reference turn on Perdure, on hand-written Temporal workflows and on plain LangGraph."""
