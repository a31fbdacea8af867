"""Names and ids. Every derived id is a pure function, so that a retry and a replay name the same thing.

A turn's engine counts steps; a model call is `m<step>`, the calls that it asks for are `t<step>.<index>`. The
provider's own ids are data. An effect is unique by (turn, call id).
"""

import hashlib
import re

from perdure.contracts.values import sha256_hex

LAST_WORD_ID = "s1"
"""The id under which clients receive an answer that the graph gives without a model. A turn has at most one."""


_TRACE_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


def trace_id(given: object, otherwise: str) -> str:
    """Returns the trace id of a request if it is valid, and `otherwise` if not."""
    return given if isinstance(given, str) and _TRACE_ID.fullmatch(given) else otherwise


def model_call_id(step: int) -> str:
    """Returns the id of the model call made at `step`, for example `m2`."""
    return f"m{step}"


def tool_call_id(step: int, index: int) -> str:
    """Returns the id of the `index`-th tool call requested at `step`, for example `t2.0`."""
    return f"t{step}.{index}"


def step_of(call_id: str) -> int:
    """Returns the step at which a call was made: 2 for `m2` and for `t2.0`."""
    return int(call_id[1:].partition(".")[0])


def turn_workflow_id(turn_id: str) -> str:
    """Returns the Temporal workflow id of a turn. It stays the same through every pause and every continue-as-new."""
    return f"turn:{turn_id}"


def checkpoint_id(call_id: str) -> str:
    """Returns the id of the checkpoint on a call's result, which is also the id of that call after a reviewer edits it:
    `c2.0` for `t2.0`."""
    return f"c{call_id[1:]}"


def forced_checkpoint_id(step: int) -> str:
    """Returns the id of a checkpoint on the answer after `step`: `c2`."""
    return f"c{step}"


def limit_id(step: int) -> str:
    """Returns the id of the request to raise a limit that was reached after `step`: `l2`."""
    return f"l{step}"


def question_id(step: int) -> str:
    """Returns the id of a question to the requester after `step`: `q2`."""
    return f"q{step}"


def reviewed_call(checkpoint: str) -> str | None:
    """Returns the call whose result a checkpoint is about; None for a checkpoint on the answer."""
    return f"t{checkpoint[1:]}" if "." in checkpoint else None


def approval_id(turn_id: str, call_id: str) -> str:
    """Returns the id (a UUID) of a call's approval. A call has one approval, even if it is opened repeatedly."""
    return _uuid_of(f"approval/{turn_id}/{call_id}")


def file_id(turn_id: str, call_id: str, name: str) -> str:
    """Returns the id (a UUID) of a file that a call created. It is the same for every attempt."""
    return _uuid_of(f"file/{turn_id}/{call_id}/{name}")


def _uuid_of(name: str) -> str:
    digest = hashlib.sha256(name.encode()).digest()
    value = int.from_bytes(digest[:16], "big")
    value = (value & ~(0xF << 76)) | (0x8 << 76)  # version 8: a custom scheme
    value = (value & ~(0x3 << 62)) | (0x2 << 62)
    text = f"{value:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


EFFECT_PREFIX = "pdk_"
"""The start of every effect's key. A turn that waits names effects beside approvals, which have UUIDs."""


def effect_key(turn_id: str, call_id: str) -> str:
    """Returns the idempotency key that a target receives, which is also the effect's name in the API."""
    return EFFECT_PREFIX + sha256_hex(f"{turn_id}/{call_id}")[:40]
