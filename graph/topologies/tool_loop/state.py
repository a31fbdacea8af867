"""The state of `tool_loop` (S2-05).

Where the source kept something here that lives elsewhere: the round that is to run is `pending_tool_calls`, and
`settled_calls` what of it ran before a pause; decisions are never state, they are read fresh from their records, each
time (design section 5); whether the round was announced follows from its requests, so no flag suppresses it; messages
are replaced and not added, since a paused round is taken out and put back whole. The user is a name and a role here;
whose turn it is stays with the turn's row.
"""

from typing import Final

from graph.nodes.fields import BUDGET, CONTROL, CONVERSATION, IDENTITY, MEMORY, REVIEW
from graph.state import Field, StateSchema

RUN: Final = (
    Field("run_id", ""),
    Field("started_at", None),
    Field("ended_at", None),
    Field("duration_ms", None),
    Field("done", False),
    Field("awaiting_approval", False),
    Field("memory_context_loaded", False),
    Field("ttft_emitted", False),
)
TOOLSETS: Final = (Field("loaded_toolsets", {}),)
"""By toolset, whether with the tools that write. What it starts as is the agent's to say (`toolsets:`)."""

STATE: Final = StateSchema((*IDENTITY, *CONTROL, *CONVERSATION, *BUDGET, *REVIEW, *MEMORY, *RUN, *TOOLSETS))
