"""Facts that a running graph can store and look up, and the result of each such operation.

A fact is derived and short. A fact of a conversation is a key with a value, and a newer one replaces an older one.
Facts of a user are only added. No operation raises: an external failure is a status.
"""

from enum import StrEnum
from typing import Final, Literal

from pydantic import ConfigDict, Field, JsonValue, ValidationError

from perdure.contracts.skills import is_empty
from perdure.contracts.turns import TurnAddress
from perdure.contracts.values import Frozen, Tolerant

MAX_FACTS = 10
"""Limits of facts for one read and for one write."""
MAX_FACT_CHARACTERS = 200
MEMORY_POLICY_DENIED = "memory.policy.denied"
MEMORY_PROMOTION_PROPOSED = "memory.promotion.proposed"
MEMORY_SAFETY_FLAGGED = "memory.safety.flagged"
CLIENT_TABLE: Final = "client_table"
"""The key of the turn's metadata that describes data which stays with the client."""
MAX_OTHERS: Final = 3
MAX_ROWS: Final = 1_000_000
MAX_COLUMNS: Final = 200


class FactScope(StrEnum):
    """The owner of facts."""

    CONVERSATION = "conversation"
    USER = "user"


class FactStatus(StrEnum):
    """The status of an operation. A read: `success`, `not_found`, `unavailable`. A write: `success`, `failed`. Both:
    `unauthorized`."""

    SUCCESS = "success"
    NOT_FOUND = "not_found"
    UNAVAILABLE = "unavailable"
    FAILED = "failed"
    UNAUTHORIZED = "unauthorized"


class Fact(Tolerant):
    """One fact."""

    type: str = Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")
    content: str = Field(min_length=1, max_length=MAX_FACT_CHARACTERS)
    confidence: float = Field(default=1.0, ge=0, le=1)


class FactsRequest(Tolerant):
    """A read or write of facts, as a node requests it."""

    scope: FactScope
    authorized: bool
    """True if the graph permits it. The agent's own definition must permit it too."""
    write: bool = False
    facts: tuple[Fact, ...] = Field(default=(), max_length=MAX_FACTS, exclude_if=is_empty)
    """The facts to write."""
    types: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """The types to read; empty for all."""
    about: str = Field(default="", exclude_if=is_empty)
    """The text whose nearest facts in meaning are returned, if more facts about a person exist than fit."""

    def failed(self) -> FactStatus:
        """Returns the status if memory cannot be used."""
        return FactStatus.FAILED if self.write else FactStatus.UNAVAILABLE


class FactsCall(Tolerant):
    """The input of `memory.facts`."""

    address: TurnAddress
    agent_id: str
    agent_version: str
    ask: FactsRequest


class FactsAnswer(Tolerant):
    """The result of a read or write."""

    status: FactStatus
    facts: tuple[Fact, ...] = Field(default=(), exclude_if=is_empty)
    """The facts that were read: those of a conversation by type, those of a person oldest first."""
    refused_change: bool = Field(default=False, exclude_if=is_empty)
    """True if the database rejected a change of a fact about a person."""


class Scope(StrEnum):
    """The visibility of a document."""

    CONVERSATION = "conversation"
    """The owner of the conversation, only there."""
    USER = "user"
    """One person, in every conversation."""
    WORKSPACE = "workspace"
    """All users of the tenant; only administrators write it."""


class Trust(StrEnum):
    """The confirmation of a version."""

    ADMIN_APPROVED = "admin_approved"
    SYSTEM_SEEDED = "system_seeded"
    USER_AUTHORED = "user_authored"
    AGENT_DRAFT = "agent_draft"
    """A text that no reviewer has checked. The model sees it in a separate section, and must not follow its
    instructions."""


class Use(StrEnum):
    """A turn's use of a version."""

    INJECTED = "injected"
    READ = "read"
    WRITTEN = "written"
    PROPOSED = "proposed"


class Risk(StrEnum):
    """The proposer's estimate of what can go wrong if a promotion is approved."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class DocumentRef(Tolerant):
    """A version of a document, as events and states refer to it."""

    document_id: str
    version_id: str
    store: str
    """The slug of its store."""
    path: str
    trust: Trust


class Recalled(Tolerant):
    """The part of memory that one turn receives: one system message, made for that turn, and the documents in it."""

    text: str = ""
    """Empty if nothing matches."""
    hits: tuple[DocumentRef, ...] = ()


class MemoryLimits(Frozen):
    """The limits of the memory that a turn sees, and the requirements of a write."""

    enabled: bool = True
    """False: no turn sees documents or episodes, and no tool of an agent reaches documents."""
    context_documents: int = Field(default=6, ge=1, le=50)
    context_tokens: int = Field(default=2_200, ge=1)
    evidence_required: bool = True
    """Rejects an agent's write that does not name its sources."""
    document_bytes: int = Field(default=100_000, ge=1, le=10_000_000)
    """A larger write is rejected."""
    write_bytes: int = Field(default=25_000, ge=1)
    """A larger write gets a warning."""


DEFAULT_LIMITS = MemoryLimits()


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
    """The whole table, which stays with the client: names, kinds and counts of its columns, never a row."""

    name: str = Field(min_length=1, max_length=120)
    rows: int = Field(ge=1)
    columns: list[ClientColumn] = Field(min_length=1, max_length=MAX_COLUMNS)


class ClientTables(ClientTable):
    """A table, and other tables that plans may join with it."""

    others: list[ClientTable] = Field(default=[], max_length=MAX_OTHERS)


def client_tables_fault(given: JsonValue) -> str:
    """Returns what is wrong with a description, in a sentence that quotes nothing of it; empty if it is valid."""
    try:
        ClientTables.model_validate(given)
    except ValidationError as error:
        first_error = error.errors(include_url=False, include_input=False, include_context=False)[0]
        location = ".".join(str(parts)[:40] for parts in first_error["loc"])
        return f"metadata.{CLIENT_TABLE} is invalid: {location}: {first_error['msg']}"[:300]
    return ""
