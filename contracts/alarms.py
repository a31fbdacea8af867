"""Alarms: that something happened which the design says cannot. They are told, and decide nothing (S3-38, S3-39)."""

from enum import StrEnum
from typing import Final

from pydantic import JsonValue

from contracts.frozen import Tolerant

MOST_ALARMS: Final = 32
"""Different ones that a run tells; they ride in the input of an activity, which must stay small."""


class AlarmType(StrEnum):
    """What is watched."""

    MODEL_ACCESS_UNAUTHORIZED = "model_access_unauthorized"
    MEMORY_READ_UNAUTHORIZED = "memory_read_unauthorized"
    MEMORY_WRITE_UNAUTHORIZED = "memory_write_unauthorized"
    MEMORY_NOT_APPEND_ONLY = "memory_not_append_only"
    MEMORY_ADVISORY_OVERRIDDEN = "memory_advisory_overridden"
    """What only advises was read where something is decided."""
    MULTIPLE_TERMINAL_NODES = "multiple_terminal_nodes"
    UNEXPECTED_ROUTING = "unexpected_routing"
    STATE_MUTATION_OUTSIDE_ALLOWED_NODE = "state_mutation_outside_allowed_node"
    FORBIDDEN_STATE_FIELD_MUTATED = "forbidden_state_field_mutated"
    FORBIDDEN_DATA_IN_TRACE = "forbidden_data_in_trace"
    TRACE_FAILURE_BLOCKING_EXECUTION = "trace_failure_blocking_execution"


class Severity(StrEnum):
    """How bad it is."""

    WARN = "warn"
    ERROR = "error"


class Alarm(Tolerant):
    """One broken invariant, as it is recorded."""

    type: AlarmType
    node: str = ""
    """Where; empty for what is of the whole turn."""
    description: str
    """One sentence, without any content of the turn."""
    severity: Severity = Severity.ERROR
    context: dict[str, JsonValue] = {}
    """Names only: the field, the two nodes."""
    trace_id: str = ""
    """The turn's; an alarm in its event log is under its turn anyway."""
