"""The five error families, named by who acts next (design section 8)."""

from dataclasses import dataclass, field
from typing import ClassVar

from perdure.contracts.values import Tolerant


class Problem(Tolerant):
    """A failure as data: what a node, a stream or a client sees of an error."""

    code: str
    """Stable, snake_case."""
    message: str
    """One sentence for a person; never a secret, never a stack."""
    retry_after_seconds: float | None = None


@dataclass(eq=False)
class PerdureError(Exception):
    """Our own errors: `code` is stable, `message` says what happened and what to do."""

    code: str
    message: str
    details: dict[str, object] = field(default_factory=dict)
    retryable: ClassVar[bool] = False
    http_status: ClassVar[int] = 500

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def as_problem(self) -> Problem:
        """This error as data."""
        return Problem(code=self.code, message=self.message)


@dataclass(eq=False)
class CallerError(PerdureError):
    """The client must change the request."""

    status: int = 422

    @property
    def http(self) -> int:
        """The 4xx status to answer with."""
        return self.status


@dataclass(eq=False)
class UpstreamUnavailable(PerdureError):
    """Something outside is down or asks us to wait; Temporal retries."""

    retry_after_seconds: float | None = None
    retryable: ClassVar[bool] = True
    http_status: ClassVar[int] = 503

    def as_problem(self) -> Problem:
        """This error as data, with the wait that the other side asked for."""
        return Problem(code=self.code, message=self.message, retry_after_seconds=self.retry_after_seconds)


@dataclass(eq=False)
class UpstreamRejected(PerdureError):
    """Something outside said no for good; the graph gets it as data."""

    http_status: ClassVar[int] = 502


@dataclass(eq=False)
class LimitReached(PerdureError):
    """A budget or a cap was met; the graph ends cleanly."""

    http_status: ClassVar[int] = 429


@dataclass(eq=False)
class InvariantBroken(PerdureError):
    """Something that cannot be: an engineer must look."""
