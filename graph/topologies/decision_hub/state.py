"""The state of `decision_hub` (S3-19), with the source's own defaults.

Where the source kept something here that lives elsewhere: whole texts are in Postgres, so `raw_input` and
`final_output` are the beginnings of theirs, and `model_response` refers to its message. Beside the source's fields
stand the statuses of the two reads: a read that found nothing has no result, and without a status nobody would know
that it is done (S3-24).
"""

from typing import Final

from graph.nodes.fields import BUDGET, CONVERSATION, IDENTITY
from graph.state import Field, StateSchema

REQUEST: Final = (
    Field("trace_id", ""),
    Field("created_at", ""),
    Field("input_type", ""),
    Field("raw_input", ""),
)
WORK: Final = (
    Field("preprocessing_result"),
    Field("model_response"),
    Field("model_metadata"),
    Field("final_output"),
    Field("error_type"),
    Field("command"),
    Field("response"),
)
SHORT_TERM: Final = (
    Field("memory_available", True),
    Field("memory_read_authorized", False),
    Field("memory_write_authorized", False),
    Field("memory_read_status"),
    Field("memory_read_result"),
    Field("memory_write_status"),
)
LONG_TERM: Final = (
    Field("long_term_memory_requested", False),
    Field("long_term_memory_status", "available"),
    Field("long_term_memory_read_status"),
    Field("long_term_memory_read_result"),
    Field("long_term_memory_write_status"),
)

STATE: Final = StateSchema((*IDENTITY, *CONVERSATION, *BUDGET, *REQUEST, *WORK, *SHORT_TERM, *LONG_TERM))
