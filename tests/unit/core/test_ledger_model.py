"""The ledger's rules against every order of events: attempts that die, freeze and wake, and a world that counts.

All states that a few attempts can reach are visited; the shortest way to a broken promise is what a failure prints.
Only the owner of the current epoch is followed: one that lost it is stopped by its last check and by the settle, which
tests/integration shows on the real tables.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest

from perdure.contracts.calls import CallState, EffectClass
from perdure.core.calls.ledger import (
    Acted,
    Attempt,
    Claim,
    Gate,
    Held,
    Reservation,
    Settle,
    after_act,
    claim_tool,
    may_have_happened,
    reservation_deadline,
)

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
TIMEOUT_SECONDS = 5.0
KEY_TTL_SECONDS = 13.0
STEP_SECONDS = 4
MOST_ATTEMPTS = 4
MOST_SECONDS = 32
STATE_AFTER = {
    Settle.DONE: CallState.DONE,
    Settle.FAILED: CallState.FAILED,
    Settle.OUTCOME_UNKNOWN: CallState.OUTCOME_UNKNOWN,
    Settle.RELEASE: CallState.PLANNED,
    Settle.RETRY: CallState.RESERVED,
}


@dataclass(frozen=True, slots=True)
class Owner:
    """The attempt that reserved the call; it may be dead, frozen or about to act."""

    send_before: datetime
    sent_before: bool
    acted: Acted | None = None


@dataclass(frozen=True, slots=True)
class World:
    """The ledger's row, the attempts, and what the target has really done."""

    row: Reservation
    now: datetime = BEGIN
    deadline: datetime = BEGIN
    attempts: int = 0
    stopped: bool = False
    void: bool = False
    owner: Owner | None = None
    effects: int = 0
    key_known_since: datetime | None = None


def next_worlds(world: World) -> Iterator[tuple[str, World]]:
    """Everything that can happen next."""
    if world.now < BEGIN + timedelta(seconds=MOST_SECONDS):
        yield f"{STEP_SECONDS} s pass", replace(world, now=world.now + timedelta(seconds=STEP_SECONDS))
    if not world.stopped:
        yield "the turn is stopped", replace(world, stopped=True)
    if not world.void:
        yield "the approval no longer counts", replace(world, void=True)
    if world.attempts < MOST_ATTEMPTS:
        yield "an attempt claims", claimed(world)
    if may_send(world):
        for acted in Acted:
            yield f"the owner acted: {acted.value}", sent(world, acted)
    if world.owner is not None and world.owner.acted is not None:
        for last in (False, True):
            yield f"the owner settles, last {last}", settled(world, world.owner, last)
    if world.row.state is CallState.OUTCOME_UNKNOWN and world.now > world.deadline:
        truth = CallState.DONE if world.effects else CallState.FAILED
        yield "a person states the truth", replace(world, row=replace(world.row, state=truth))


def claimed(world: World) -> World:
    """Temporal dispatches another attempt, whatever became of the one before."""
    number = world.attempts + 1
    by, row = Attempt("run", number), world.row
    verdict = claim_tool(Gate(False, world.stopped), row, by, allowed=not world.void, now=world.now)
    world = replace(world, attempts=number)
    if verdict is Claim.ACT:
        epoch = row.held.epoch + 1 if row.held else 1
        owner = Owner(world.now + timedelta(seconds=TIMEOUT_SECONDS), may_have_happened(row))
        held = replace(
            row,
            state=CallState.RESERVED,
            held=Held(epoch, by, False),
            first_sent_at=row.first_sent_at or world.now,
        )
        deadline = reservation_deadline(world.now) + timedelta(seconds=TIMEOUT_SECONDS)
        return replace(world, row=held, deadline=deadline, owner=owner)
    state = {Claim.UNKNOWN: CallState.OUTCOME_UNKNOWN, Claim.DENIED: CallState.DENIED}.get(verdict, row.state)
    return replace(world, row=replace(row, state=state))


def may_send(world: World) -> bool:
    """The last check before sending, and the tool's own deadline."""
    owner = world.owner
    reserved = world.row.state is CallState.RESERVED
    return reserved and owner is not None and owner.acted is None and world.now < owner.send_before


def sent(world: World, acted: Acted) -> World:
    """The owner sends, or finds that it cannot; the target honours a key for as long as it said."""
    assert world.owner is not None
    world = replace(world, owner=replace(world.owner, acted=acted))
    if acted not in (Acted.RETURNED, Acted.AMBIGUOUS):
        return world
    known = world.key_known_since
    if (
        world.row.effect is EffectClass.KEYED
        and known is not None
        and world.now - known < timedelta(seconds=KEY_TTL_SECONDS)
    ):
        return world
    return replace(world, effects=world.effects + 1, key_known_since=world.now)


def settled(world: World, owner: Owner, last: bool) -> World:
    """The owner records what it saw; refused where the call is settled."""
    assert owner.acted is not None
    world = replace(world, owner=None)
    if world.row.state is not CallState.RESERVED:
        return world
    settle = after_act(world.row.effect, owner.acted, last_attempt=last, sent_before=owner.sent_before)
    row = replace(world.row, state=STATE_AFTER[settle])
    return replace(world, row=replace(row, first_sent_at=None) if settle is Settle.RELEASE else row)


def broken_promise(world: World) -> str:
    """What must never be so; empty where all is well."""
    state = world.row.state
    if world.effects > 1:
        return "it happened twice"
    if state in (CallState.FAILED, CallState.DENIED) and world.effects:
        return f"recorded as {state.value}, and it happened"
    if state is CallState.DONE and not world.effects:
        return "recorded as done, and it never happened"
    return ""


@pytest.mark.parametrize("effect", [EffectClass.KEYED, EffectClass.OPAQUE])
def test_no_order_of_events_breaks_the_promise_of_a_class(effect: EffectClass) -> None:
    row = Reservation(CallState.PLANNED, None, effect, key_ttl_seconds=KEY_TTL_SECONDS, timeout_seconds=TIMEOUT_SECONDS)
    first = World(row)
    came_by: dict[World, tuple[str, World | None]] = {first: ("", None)}
    queue = [first]
    for world in queue:
        for step, following in next_worlds(world):
            if following in came_by:
                continue
            came_by[following] = (step, world)
            assert not (broken := broken_promise(following)), f"{broken}: {way_to(following, came_by)}"
            queue.append(following)
    assert {world.row.state for world in queue} == set(CallState), "the search reaches every state of a call"
    assert len(queue) > 1_000


def way_to(world: World, came_by: dict[World, tuple[str, World | None]]) -> list[str]:
    """The steps that lead to a world."""
    step, before = came_by[world]
    return [*way_to(before, came_by), step] if before is not None else []
