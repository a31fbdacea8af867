"""Facts: what a graph may remember and look up while it runs, and how each such operation ended.

A fact is derived and short. Those of a conversation are key and value, and a newer one takes the place of an older one;
those of a person are only ever added. Nothing here raises: whatever happens outside is a status.
"""

from enum import StrEnum
from typing import Final, Literal

from pydantic import ConfigDict, Field, JsonValue, ValidationError

from perdure.contracts.skills import is_empty
from perdure.contracts.turns import TurnAddress
from perdure.contracts.values import Frozen, Tolerant

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


# --- Documents of memory: where one belongs, who vouches for it, and how a turn refers to those that it is shown.

MEMORY_POLICY_DENIED = "memory.policy.denied"
MEMORY_PROMOTION_PROPOSED = "memory.promotion.proposed"
MEMORY_SAFETY_FLAGGED = "memory.safety.flagged"


class Scope(StrEnum):
    """Whom a document is for."""

    CONVERSATION = "conversation"
    """The person whose conversation it is, there and nowhere else."""
    USER = "user"
    """One person, in every conversation."""
    WORKSPACE = "workspace"
    """Everybody of the tenant; only administrators write it."""


class Trust(StrEnum):
    """Who vouches for a version (S2-09)."""

    ADMIN_APPROVED = "admin_approved"
    SYSTEM_SEEDED = "system_seeded"
    USER_AUTHORED = "user_authored"
    AGENT_DRAFT = "agent_draft"
    """Nobody has checked it: a model is shown it apart and told not to obey it."""


class Use(StrEnum):
    """What a turn did with a version (S2-16)."""

    INJECTED = "injected"
    READ = "read"
    WRITTEN = "written"
    PROPOSED = "proposed"


class Risk(StrEnum):
    """What its proposer thinks may go wrong where a promotion is approved (S2-72)."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class DocumentRef(Tolerant):
    """A version of a document, as events and states name it (S2-15)."""

    document_id: str
    version_id: str
    store: str
    """The slug of its store."""
    path: str
    trust: Trust


class Recalled(Tolerant):
    """What memory brings into one turn: one system message, made for that turn alone, and what stands in it."""

    text: str = ""
    """Empty where nothing fits."""
    hits: tuple[DocumentRef, ...] = ()


class MemoryLimits(Frozen):
    """How much of memory a turn is shown, and what a write must bring (E-04, E-05)."""

    enabled: bool = True
    """Off: no turn is shown documents or episodes, and no tool of an agent reaches documents (S2-06)."""
    context_documents: int = Field(default=6, ge=1, le=50)
    context_tokens: int = Field(default=2_200, ge=1)
    evidence_required: bool = True
    """Whether an agent's write must say what it rests on (S2-69)."""
    document_bytes: int = Field(default=100_000, ge=1, le=10_000_000)
    """A write of more is refused (S2-71)."""
    write_bytes: int = Field(default=25_000, ge=1)
    """A write of more is warned of."""


DEFAULT_LIMITS = MemoryLimits()


# --- A table as a client that keeps it describes it: names, kinds and counts of its columns, never a row.

CLIENT_TABLE: Final = "client_table"
"""The turn's metadata that says: the data stays with the client; here is what it holds."""
MOST_OTHERS: Final = 3
MOST_ROWS: Final = 1_000_000
MOST_COLUMNS: Final = 200


class _Strict(Frozen):
    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ClientColumn(_Strict):
    """One column."""

    name: str = Field(min_length=1, max_length=200)
    kind: Literal["quantitative", "temporal", "nominal", "boolean"]
    distinct: int = Field(ge=0)
    nulls: int = Field(ge=0)
    least: int | float | None = None
    most: int | float | None = None


class ClientTable(_Strict):
    """The whole."""

    name: str = Field(min_length=1, max_length=120)
    rows: int = Field(ge=1)
    columns: list[ClientColumn] = Field(min_length=1, max_length=MOST_COLUMNS)


class ClientTables(ClientTable):
    """A table, and those beside it that plans may join."""

    others: list[ClientTable] = Field(default=[], max_length=MOST_OTHERS)


def why_no_tables(given: JsonValue) -> str:
    """What is wrong with a description, in a sentence that quotes nothing of it; empty where it is one."""
    try:
        ClientTables.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part)[:40] for part in first["loc"])
        return f"the metadata {CLIENT_TABLE}: {place}: {first['msg']}"[:300]
    return ""
