"""The state of `context_assembly`: what topologies share, the verdicts, and the context by reference. What the tools
put together stays in Postgres (S1-09)."""

from typing import Final

from graph.nodes.fields import BUDGET, CONTROL, CONVERSATION, IDENTITY, MEMORY, REVIEW
from graph.reducers import ADDITIVE
from graph.state import Field, StateSchema

STAGES: Final = (Field("completed_stages", [], ADDITIVE),)
"""Both branches of the fork add to it (S1-08)."""
VERDICTS: Final = (
    Field("safety_hijacked", True),
    Field("safety_category", ""),
    Field("intent", ""),
    Field("empathy", {}),
)
"""A turn is taken over until a verdict clears it (S1-16)."""
CONTEXT: Final = (
    Field("slice_hash", ""),
    Field("kept_bundles", []),
    Field("phases", []),
    Field("bundles", []),
    Field("degraded_sections", []),
    Field("context_sections", []),
    Field("context_guidance", ""),
)

STATE: Final = StateSchema(
    (*IDENTITY, *CONTROL, *CONVERSATION, *BUDGET, *REVIEW, *MEMORY, *STAGES, *VERDICTS, *CONTEXT)
)
