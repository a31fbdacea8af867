"""Facts: what a graph may remember and look up while it runs, and how each such operation ended.

A fact is derived and short. Those of a conversation are key and value, and a newer one takes the place of an older one;
those of a person are only ever added. Nothing here raises: whatever happens outside is a status.
"""

from enum import StrEnum

from pydantic import Field

from contracts.frozen import Tolerant
from contracts.skills import is_empty
from contracts.turns import TurnAddress

MOST_FACTS = 10
"""Facts of one read, and of one write."""
MOST_FACT_CHARACTERS = 200


class FactScope(StrEnum):
    """Whose facts."""

    CONVERSATION = "conversation"
    USER = "user"


class FactStatus(StrEnum):
    """How an operation ended: a read `success`, `not_found`, `unavailable`; a write `success`, `failed`; either
    `unauthorized`."""

    SUCCESS = "success"
    NOT_FOUND = "not_found"
    UNAVAILABLE = "unavailable"
    FAILED = "failed"
    UNAUTHORIZED = "unauthorized"


class Fact(Tolerant):
    """One thing known."""

    type: str = Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")
    content: str = Field(min_length=1, max_length=MOST_FACT_CHARACTERS)
    confidence: float = Field(default=1.0, ge=0, le=1)


class FactsAsk(Tolerant):
    """What a node asks of memory."""

    scope: FactScope
    authorized: bool
    """Whether the graph gave leave; the agent's own definition is asked as well."""
    write: bool = False
    facts: tuple[Fact, ...] = Field(default=(), max_length=MOST_FACTS, exclude_if=is_empty)
    """What to keep."""
    types: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """Of a read: these types only; none is all of them."""
    about: str = Field(default="", exclude_if=is_empty)
    """Of a read of a person's facts: where there are more than are given, the nearest in meaning to this are."""

    def failed(self) -> FactStatus:
        """What it comes to where memory cannot be used."""
        return FactStatus.FAILED if self.write else FactStatus.UNAVAILABLE


class FactsCall(Tolerant):
    """The input of `memory.facts`."""

    address: TurnAddress
    agent_id: str
    agent_version: str
    ask: FactsAsk


class FactsAnswer(Tolerant):
    """What came of it."""

    status: FactStatus
    facts: tuple[Fact, ...] = Field(default=(), exclude_if=is_empty)
    """What was read: of a conversation by type, of a person oldest first."""
    refused_change: bool = Field(default=False, exclude_if=is_empty)
    """A fact about a person would have been changed; the database refused it."""
