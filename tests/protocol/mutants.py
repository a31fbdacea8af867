"""Mistakes that somebody might make in the protocol, to be planted in the program under test."""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import pytest

import perdure.core.approvals.assignments
import perdure.core.approvals.decisions
import perdure.store.approvals.decisions as cast
import perdure.store.approvals.review
import perdure.store.calls.tool_calls


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    plant: Callable[[pytest.MonkeyPatch], None]


def _text(name: str, module: ModuleType, constant: str, old: str, new: str) -> Mutant:
    """Another text in a statement; planting it fails where the statement does not say `old` any more."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        statement: str = getattr(module, constant)
        assert old in statement, f"{module.__name__}.{constant} does not say {old!r}: write the mutant anew"
        patch.setattr(module, constant, statement.replace(old, new))

    return Mutant(name, plant)


def _value(name: str, module: ModuleType, attribute: str, value: object) -> Mutant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        assert hasattr(module, attribute)
        patch.setattr(module, attribute, value)

    return Mutant(name, plant)


MUTANTS = [
    _text("an old worker settles", perdure.store.calls.tool_calls, "_SETTLE", "AND epoch = $3", ""),
    _text("an edit keeps the votes before it", cast, "_CAST", "v.voided_at IS NULL AND $7 = 'edit'", "false"),
    _value("a claim keeps nobody away", perdure.core.approvals.decisions, "held_by_another", lambda *_: None),
    _text("a hold is not kept", cast, "_CAST", "$9::int > 0 AND", "false AND"),
    _value("what has begun may be withdrawn", perdure.core.approvals.assignments, "_BEGUN", frozenset()),
    _value("somebody counts twice", perdure.core.approvals.decisions, "has_voted", lambda *_: False),
    _text("an escalation is not the only one", perdure.store.approvals.review, "_ONE", "AND escalated_at IS NULL", ""),
]
"""Those that are found soonest first."""
