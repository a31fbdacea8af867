"""The five error families, named by who acts next."""

from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import Field, JsonValue

from perdure.contracts.values import Tolerant


class Problem(Tolerant):
    """A failure as data, as a node, a stream or a client sees it."""

    code: str
    """Stable, snake_case."""
    message: str
    """One sentence for a person; never a secret, never a stack trace."""
    retry_after_seconds: float | None = None
    # Left out if empty: problems are part of histories that were recorded without it.
    details: dict[str, JsonValue] = Field(default={}, exclude_if=lambda details: not details)
    """The answer of a model's provider, and the first model's problem if a fallback failed too. Never content."""


@dataclass(eq=False)
class PerdureError(Exception):
    """Base of Perdure's errors. `code` is stable; `message` states the problem and what to do."""

    code: str
    message: str
    details: dict[str, object] = field(default_factory=dict)
    retryable: ClassVar[bool] = False
    http_status: ClassVar[int] = 500

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def as_problem(self) -> Problem:
        """Returns code and message of this error, for a state or an activity result."""
        return Problem(code=self.code, message=self.message)


@dataclass(eq=False)
class CallerError(PerdureError):
    """The client must change the request."""

    status: int = 422

    @property
    def http(self) -> int:
        """The 4xx status of the response."""
        return self.status


@dataclass(eq=False)
class UpstreamUnavailable(PerdureError):
    """An external system is unavailable or asks to wait; Temporal retries."""

    retry_after_seconds: float | None = None
    retryable: ClassVar[bool] = True
    http_status: ClassVar[int] = 503

    def as_problem(self) -> Problem:
        """Returns this error as data, with the wait that the external system requested."""
        return Problem(code=self.code, message=self.message, retry_after_seconds=self.retry_after_seconds)


@dataclass(eq=False)
class UpstreamRejected(PerdureError):
    """An external system rejected the request permanently. The graph receives this as data."""

    http_status: ClassVar[int] = 502


@dataclass(eq=False)
class LimitReached(PerdureError):
    """A budget or a cap was reached; the graph ends cleanly."""

    http_status: ClassVar[int] = 429


@dataclass(eq=False)
class InvariantBroken(PerdureError):
    """A state that must not occur; an engineer must look."""
