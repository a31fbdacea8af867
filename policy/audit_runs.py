"""Whether every call that needed an approval and has begun had been given one: told by the audit, not by the approval.

Whoever writes into the approvals themselves can make a call run. He cannot write the signed row of the decision.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from policy.audit_faults import Fault, FaultKind

DECIDED = "approval.decided"
OUTCOMES = (DECIDED, "approval.withdrawn", "approval.voided", "approval.expired", "approval.cancelled")
"""Kinds of rows that say what became of a request; the last of them stands."""
GIVEN = ("approve", "edit")
"""What a decision says that lets a call run."""


@dataclass(frozen=True, slots=True)
class Run:
    """A gated call that has begun, and the last that the audit says of its approval."""

    approval_id: str
    outcome: str | None
    """The kind of that row; None: there is none."""
    said: str | None
    """What was decided; None where the row's body was erased with its person, or it is no decision."""
    seq: int | None = None
    """The place of the approval's first row."""
    audit_id: int | None = None

    @property
    def was_allowed(self) -> bool:
        """Whether somebody had let it run, as far as can still be known."""
        return self.outcome == DECIDED and (self.said is None or self.said in GIVEN)


def undecided(runs: Iterable[Run]) -> list[Fault]:
    """A fault for each that nobody had allowed."""
    return [
        Fault(run.seq or 0, FaultKind.RAN_UNDECIDED, run.audit_id, run.approval_id)
        for run in runs
        if not run.was_allowed
    ]
