"""Which command the one deciding node of a hub gives next (S3-05, S3-06).

Determined by what is done and what is allowed, and by nothing that a model or a memory has said: a step that has a
status is done, whatever the status is, so a memory that is dead is asked once and never again (S3-24).
"""

from dataclasses import dataclass
from enum import StrEnum


class Command(StrEnum):
    """Everything that may be done next."""

    PREPROCESS = "preprocess"
    MEMORY_READ = "memory_read"
    LONG_TERM_MEMORY_READ = "long_term_memory_read"
    CALL_MODEL = "call_model"
    MEMORY_WRITE = "memory_write"
    LONG_TERM_MEMORY_WRITE = "long_term_memory_write"
    FORMAT = "format"


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a turn is."""

    failed: bool
    """It has an error, and only its response is left."""
    done: frozenset[Command]
    """What has come to a result, of whatever kind."""
    allowed: frozenset[Command]
    """Which of the memory operations the turn may make."""


IN_ORDER = (
    Command.PREPROCESS,
    Command.MEMORY_READ,
    Command.LONG_TERM_MEMORY_READ,
    Command.CALL_MODEL,
    Command.MEMORY_WRITE,
    Command.LONG_TERM_MEMORY_WRITE,
)
OPTIONAL = frozenset(IN_ORDER) - {Command.PREPROCESS, Command.CALL_MODEL}


def next_command(standing: Standing) -> Command:
    """The first that is neither done nor forbidden; then the response."""
    if standing.failed:
        return Command.FORMAT
    for command in IN_ORDER:
        if command not in standing.done and (command not in OPTIONAL or command in standing.allowed):
            return command
    return Command.FORMAT
