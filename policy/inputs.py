"""What a request's metadata may say of its input: a turn that could only end as failed is refused at the door."""

from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

from contracts.errors import CallerError
from contracts.ids import trace_id

INPUT_TYPES: Final = ("text", "audio", "image")
"""Of `decision_hub` (S3-15), which stands in for the last two."""
_TAKEN: Final[Mapping[str, tuple[str, ...]]] = {"decision_hub": INPUT_TYPES, "context_assembly": INPUT_TYPES[:1]}
"""By topology. To others `input_type` is a caller's own word."""


def unfit(topology: str, metadata: Mapping[str, JsonValue]) -> CallerError | None:
    """Why a turn of the topology cannot begin with these: 422 `bad_input_type`, or `bad_trace_id` where the id could
    not be kept as it was given (S3-14)."""
    taken = _TAKEN.get(topology)
    if taken is None:
        return None
    if "input_type" in metadata and metadata["input_type"] not in taken:
        why = (
            f"metadata.input_type must be one of {', '.join(taken)}" if len(taken) > 1 else "only text can be read here"
        )
        return CallerError("bad_input_type", why, {"input_types": [*taken]})
    given = metadata.get("trace_id")
    if topology == "decision_hub" and given is not None and trace_id(given, "") != given:
        return CallerError("bad_trace_id", "metadata.trace_id must be 1 to 128 letters, digits and signs of _.:-")
    return None
