"""Documents of memory: where one belongs, who vouches for it, and how a turn refers to those that it is shown."""

from enum import StrEnum

from pydantic import Field

from contracts.frozen import Frozen, Tolerant

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
