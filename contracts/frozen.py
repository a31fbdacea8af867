"""The one base of every value that crosses a process boundary.

Their validators are built at first use (`defer_build`): a process has use for a part of them, and building all takes a
quarter of a second of CPU at its start. A request's body is an `api.bodies.Body`: FastAPI wants those built.
"""

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """An immutable value; unknown fields are refused so that a renamed field fails loudly."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", ser_json_inf_nan="null")


class Tolerant(BaseModel):
    """An immutable value that outlives deploys inside a history: fields added later are ignored by older readers."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="ignore")
