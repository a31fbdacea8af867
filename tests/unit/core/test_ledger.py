"""The ledger of effects: what is recorded of a call decides whether it runs again."""

import json
import ssl
from asyncio import CancelledError
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from perdure.contracts import ids
from perdure.contracts.calls import CallState, EffectClass, KnownEnd
from perdure.core.calls import ledger
from perdure.core.calls.failures import (
    UnusableResult,
    failure_text,
    frames_of,
    is_permanent,
    known,
    known_of_attempts,
    replaced,
)
from perdure.core.calls.ledger import (
    ActionEnd,
    Attempt,
    Claim,
    LockedTurn,
    RecordedClaim,
    Reservation,
    SettleAction,
    after_act,
    claim_tool,
)
from perdure.core.calls.secrets import secrets_of
from tests.scale import sized

HERE = Path(__file__).name
NOW = datetime(2026, 3, 1, tzinfo=UTC)
OPEN, STOPPED, ENDED = LockedTurn(False, False), LockedTurn(False, True), LockedTurn(True, False)
FIRST, SECOND, OTHER_RUN = Attempt("run", 1), Attempt("run", 2), Attempt("later run", 1)


@pytest.mark.parametrize(("gate", "held", "attempt", "expected"), [
    *((OPEN, None, FIRST, Claim.ACT), (STOPPED, None, FIRST, Claim.STOPPED)),
    *((ENDED, None, FIRST, Claim.ENDED), (LockedTurn(True, True), None, FIRST, Claim.ENDED)),
    (OPEN, RecordedClaim(1, FIRST, False), SECOND, Claim.ACT),
    (OPEN, RecordedClaim(2, SECOND, False), OTHER_RUN, Claim.ACT),
    *((gate, RecordedClaim(2, SECOND, False), FIRST, Claim.STALE) for gate in (OPEN, STOPPED)),
    *((gate, RecordedClaim(1, FIRST, True), SECOND, Claim.REPLAY) for gate in (OPEN, STOPPED, ENDED)),
    (OPEN, RecordedClaim(2, SECOND, True), FIRST, Claim.REPLAY),
])  # fmt: skip
def test_the_state_of_turn_and_attempt_decides_a_claim(
    gate: LockedTurn, held: RecordedClaim | None, attempt: Attempt, expected: Claim
) -> None:
    assert ledger.claim(gate, held, attempt) is expected


def test_derived_ids_are_stable_and_unique_to_each_call() -> None:
    keys = {call_id: ids.effect_key("turn", call_id) for call_id in ("t1.0", "t1.1")}
    assert keys == {
        "t1.0": "pdk_8286417a4c670342151abf28752477af0f0f5a6e",
        "t1.1": "pdk_6a5f48b0f632cbe61a5e8d5a30204c54dacc82cc",
    }
    assert ids.approval_id("turn", "t1.0") == "aaaa21b9-a7cd-8930-adca-8b8b428d25fb"
    assert ids.file_id("turn", "t1.0", "a.csv") == "3eac7d59-4d5f-8306-9fba-228d11327c4a"


PLANNED = Reservation(CallState.PLANNED, None, EffectClass.KEYED)
SENT = Reservation(CallState.RESERVED, RecordedClaim(1, FIRST, False), EffectClass.KEYED, NOW, 60.0)
YOUNG, OLD = NOW + timedelta(seconds=59), NOW + timedelta(seconds=60)


@pytest.mark.parametrize(("row", "gate", "allowed", "now", "expected"), [
    *((PLANNED, OPEN, True, NOW, Claim.ACT), (PLANNED, OPEN, False, NOW, Claim.DENIED)),
    (PLANNED, STOPPED, False, NOW, Claim.STOPPED),
    *((PLANNED, ENDED, True, NOW, Claim.ENDED), (SENT, OPEN, True, YOUNG, Claim.ACT)),
    (SENT, OPEN, True, OLD, Claim.UNKNOWN),
    (replace(SENT, key_ttl_seconds=None), OPEN, True, YOUNG, Claim.UNKNOWN),
    # A lost attempt may have sent it: it is not denied, and a stop does not make it undone.
    *((SENT, OPEN, False, YOUNG, Claim.UNKNOWN), (SENT, STOPPED, True, YOUNG, Claim.UNKNOWN)),
    (SENT, ENDED, True, YOUNG, Claim.UNKNOWN),
    (replace(SENT, effect=EffectClass.OPAQUE), OPEN, True, YOUNG, Claim.UNKNOWN),
    (replace(SENT, effect=EffectClass.LOCAL), OPEN, True, OLD, Claim.ACT),
    (replace(SENT, effect=EffectClass.LOCAL), OPEN, False, OLD, Claim.DENIED),
    (replace(SENT, effect=EffectClass.READ, lost=11), OPEN, True, OLD, Claim.ACT),
    (replace(SENT, effect=EffectClass.READ, lost=12), OPEN, True, OLD, Claim.LOST),
    (replace(SENT, effect=EffectClass.READ, lost=12, state=CallState.PLANNED), OPEN, True, OLD, Claim.ACT),
    (replace(SENT, lost=12), OPEN, True, YOUNG, Claim.UNKNOWN),
    (replace(SENT, effect=EffectClass.READ, lost=2, hung=1), OPEN, True, OLD, Claim.ACT),
    (replace(SENT, effect=EffectClass.READ, lost=2, hung=2), OPEN, True, OLD, Claim.LOST),
    (replace(SENT, lost=2, hung=2), OPEN, True, YOUNG, Claim.UNKNOWN),
    (replace(SENT, effect=EffectClass.READ), STOPPED, True, OLD, Claim.STOPPED),
    (replace(SENT, held=RecordedClaim(2, Attempt("run", 3), False)), OPEN, True, YOUNG, Claim.STALE),
    (replace(SENT, state=CallState.OUTCOME_UNKNOWN), OPEN, True, YOUNG, Claim.UNKNOWN),
    (replace(SENT, state=CallState.DONE), ENDED, False, OLD, Claim.REPLAY),
    (replace(SENT, state=CallState.FAILED), STOPPED, False, OLD, Claim.REPLAY),
    (replace(SENT, state=CallState.DENIED), OPEN, True, OLD, Claim.REPLAY),
])  # fmt: skip
def test_a_tool_call_is_claimed_by_its_state_effect_class_and_age(
    row: Reservation, gate: LockedTurn, allowed: bool, now: datetime, expected: Claim
) -> None:
    assert claim_tool(gate, row, SECOND, allowed=allowed, now=now) is expected


attempts = st.builds(Attempt, st.sampled_from(["a", "b"]), st.integers(1, 3))
gates = st.builds(LockedTurn, st.booleans(), st.booleans())
helds = st.builds(RecordedClaim, st.integers(1, 4), attempts, st.just(False))
sent_ats, ttls = st.none() | st.just(NOW), st.none() | st.sampled_from([0.5, 60.0, 3600.0])
states, effects = st.sampled_from(CallState), st.sampled_from(EffectClass)
rows = st.builds(Reservation, states, st.none() | helds, effects, sent_ats, ttls)
moments = st.sampled_from([NOW, NOW + timedelta(seconds=1), NOW + timedelta(hours=2)])


@given(gates, rows, attempts, st.booleans(), moments)
def test_no_claim_repeats_an_opaque_call_or_runs_one_in_an_ended_turn(
    gate: LockedTurn, row: Reservation, attempt: Attempt, allowed: bool, now: datetime
) -> None:
    verdict = claim_tool(gate, row, attempt, allowed=allowed, now=now)
    assert (verdict is Claim.REPLAY) == (row.state in ledger.SETTLED)
    if verdict is Claim.ACT:
        assert allowed
        assert not gate.ended and not gate.stopped
        assert row.state in (CallState.PLANNED, CallState.RESERVED)
        # An opaque call that may have been sent is never sent again.
        assert row.effect is not EffectClass.OPAQUE or row.state is CallState.PLANNED
        assert row.state is CallState.PLANNED or ledger.may_send_again(row, now)
    if ledger.may_have_happened(row):
        assert verdict in (Claim.ACT, Claim.UNKNOWN, Claim.STALE), "it may have happened: never denied, never dropped"


@given(gates, st.none() | st.builds(RecordedClaim, st.integers(1, 4), attempts, st.booleans()), attempts)
def test_a_result_is_replayed_only_if_settled(gate: LockedTurn, held: RecordedClaim | None, attempt: Attempt) -> None:
    verdict = ledger.claim(gate, held, attempt)
    assert (verdict is Claim.REPLAY) == (held is not None and held.settled)
    assert verdict is not Claim.ACT or not (gate.ended or gate.stopped)


D, F, REL, RET, UNK = (
    SettleAction.DONE, SettleAction.FAILED, SettleAction.RELEASE, SettleAction.RETRY, SettleAction.OUTCOME_UNKNOWN,
)  # fmt: skip
FIRST_SEND = {
    # (effect, acted): recorded while tries are left, and after the last
    **{(effect, ActionEnd.NOT_SENT): (REL, F) for effect in EffectClass},
    **{(effect, ActionEnd.NOT_OWNED): (REL, REL) for effect in EffectClass},
    (EffectClass.READ, ActionEnd.AMBIGUOUS): (RET, F),
    (EffectClass.LOCAL, ActionEnd.AMBIGUOUS): (F, F),
    (EffectClass.KEYED, ActionEnd.AMBIGUOUS): (RET, UNK),
    (EffectClass.OPAQUE, ActionEnd.AMBIGUOUS): (UNK, UNK),
    **{(effect, ActionEnd.RETURNED): (D, D) for effect in EffectClass},
    **{(effect, ActionEnd.REFUSED): (F, F) for effect in EffectClass},
}
RESENT = {ActionEnd.RETURNED: (D, D), ActionEnd.REFUSED: (UNK, UNK), ActionEnd.NOT_SENT: (RET, UNK)}
RESENT |= {ActionEnd.NOT_OWNED: (RET, RET), ActionEnd.AMBIGUOUS: (RET, UNK)}
"""The same for a keyed call that a lost attempt may have sent."""


@pytest.mark.parametrize(("acted", "last"), [*product(ActionEnd, [False, True])])
def test_an_outcome_follows_the_class_and_a_resent_call_is_never_undone(acted: ActionEnd, last: bool) -> None:
    for effect in EffectClass:
        assert after_act(effect, acted, last_attempt=last) is FIRST_SEND[effect, acted][last]
    assert after_act(EffectClass.KEYED, acted, last_attempt=last, sent_before=True) is RESENT[acted][last]


def test_a_read_that_used_up_its_time_is_not_retried() -> None:
    assert after_act(EffectClass.READ, ActionEnd.AMBIGUOUS, last_attempt=False, timed_out=True) is SettleAction.FAILED
    assert after_act(EffectClass.KEYED, ActionEnd.AMBIGUOUS, last_attempt=False, timed_out=True) is SettleAction.RETRY
    for effect, recorded in ((EffectClass.READ, F), (EffectClass.KEYED, UNK), (EffectClass.OPAQUE, UNK)):
        for sent in (False, True):
            ended = after_act(effect, ActionEnd.AMBIGUOUS, last_attempt=False, permanent=True, sent_before=sent)
            assert ended is (UNK if sent else recorded), "a mistake of the tool's code is tried once"
    assert ledger.reservation_deadline(NOW) == NOW + ledger.ZOMBIE_GRACE


def _raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as raised:
        return raised


def _of_pydantic(text: str) -> Exception:
    try:
        raise AssertionError(TypeAdapter(dict[str, int]).validate_json(text))
    except ValidationError as raised:
        return raised


NO_JSON, HTML = json.JSONDecodeError("no", "<", 0), _of_pydantic("<html>")
OTHER_NO_JSON = type("JSONDecodeError", (ValueError,), {})("of another library")


@pytest.mark.parametrize(("error", "retried", "has_answer", "expected"), [
    *((kind("x"), (), True, True) for kind in (TypeError, KeyError, AttributeError, ValueError, NameError, IndexError)),
    *((kind("x"), (), True, False) for kind in (RuntimeError, OSError, ssl.SSLCertVerificationError, Exception)),
    *((ValueError("x"), (ValueError,), False, False), (KeyError("x"), (LookupError,), False, False)),
    *((error, (), True, False) for error in (NO_JSON, HTML, OTHER_NO_JSON)),
    *((error, (), False, True) for error in (NO_JSON, HTML, OTHER_NO_JSON)),
    (_of_pydantic('{"amount": "x"}'), (), True, True),
    (ExceptionGroup("g", [ExceptionGroup("h", [KeyError("x")])]), (), True, True),
    (ExceptionGroup("g", [KeyError("x"), OSError("y")]), (), True, False),
    (ExceptionGroup("g", [KeyError("x"), TypeError("y")]), (), True, True),
    *((kind("x"), (), True, True) for kind in (StopIteration, StopAsyncIteration, SystemExit, CancelledError)),
    *((kind("x"), (), True, True) for kind in (RecursionError, GeneratorExit)),
    (replaced(StopIteration("x")), (), True, True),
    (_raised(RuntimeError("coroutine raised StopIteration"), StopIteration()), (), True, True),
    (_raised(RuntimeError("the tool raised KeyError"), KeyError()), (), True, False),
])  # fmt: skip
def test_mistakes_of_the_code_are_not_retried(
    error: Exception, retried: tuple[type[Exception], ...], has_answer: bool, expected: bool
) -> None:
    assert is_permanent(error, retried, has_answer=has_answer) is expected


@pytest.mark.parametrize(("ends", "lost", "hung", "code"), [
    *(([], 0, 0, "earlier_attempt"), ([], 1, 0, "worker_lost"), ([], 2, 1, "worker_hung")),
    (["no_answer", "answered_error"], 1, 1, "no_answer"),
    *((["raised_before_send"] * 2, 0, 0, "raised_before_send"), (["raised_before_send"], 1, 0, "earlier_attempt")),
])  # fmt: skip
def test_an_attempt_that_sent_nothing_does_not_hide_another(ends: list[str], lost: int, hung: int, code: str) -> None:
    data = known_of_attempts([known(KnownEnd(each)) for each in ends], lost=lost, hung=hung)
    assert data["known"]["code"] == code  # type: ignore[index, call-overload]


def test_a_failure_names_the_innermost_place_of_the_app() -> None:
    here = Path(__file__).parent
    line = _raised.__code__.co_firstlineno + 2
    error: BaseException = _raised(KeyError("a"))
    assert failure_text(error, "'a'", frames_of(error, here)) == f"KeyError: 'a' at {HERE}:{line}"
    try:
        json.loads("<")
    except ValueError as raised:
        error = raised
    assert failure_text(error, "", frames_of(error, None)).startswith("JSONDecodeError at json.decoder:")
    assert [frame.place.split(".")[0] for frame in frames_of(error, here)][:2] == ["test_ledger", "json"]
    unusable = UnusableResult("no JSON", _raised)
    assert failure_text(unusable, "", frames_of(unusable, here)) == f"UnusableResult at {HERE}:{line - 2}"
    far = ValueError("without a place")
    far.__cause__ = _raised(SystemExit(1))
    assert failure_text(far, "", frames_of(far, here)) == f"ValueError at {HERE}:{line}"
    for several, shown in (
        (BaseExceptionGroup("g", [_raised(KeyError("a")), OSError()]), "KeyError"),
        (replaced(_raised(StopIteration(1))), "StopIteration"),
        (_raised(ExceptionGroup("g", [ValueError()])), "ValueError"),
    ):
        assert failure_text(several, "", frames_of(several, here)).startswith(f"{shown} at {HERE}:{line}")


TIMEOUT_SECONDS = 5.0
KEY_TTL_SECONDS = 13.0
STEP_SECONDS = 4
MOST_ATTEMPTS = sized(4, 3)
MOST_SECONDS = sized(32, 20)
STATE_AFTER = {D: CallState.DONE, F: CallState.FAILED, REL: CallState.PLANNED, RET: CallState.RESERVED}
STATE_AFTER[UNK] = CallState.OUTCOME_UNKNOWN


@dataclass(frozen=True, slots=True)
class Owner:
    """The attempt that reserved the call; it may be dead, frozen or about to act."""

    send_before: datetime
    sent_before: bool
    acted: ActionEnd | None = None


@dataclass(frozen=True, slots=True)
class World:
    """The ledger's row, the attempts, and what the target has really done."""

    row: Reservation
    now: datetime = NOW
    deadline: datetime = NOW
    attempts: int = 0
    stopped: bool = False
    void: bool = False
    owner: Owner | None = None
    effects: int = 0
    key_known_since: datetime | None = None


def next_worlds(world: World) -> Iterator[tuple[str, World]]:
    """All events that can happen next."""
    if world.now < NOW + timedelta(seconds=MOST_SECONDS):
        yield f"{STEP_SECONDS} s pass", replace(world, now=world.now + timedelta(seconds=STEP_SECONDS))
    if not world.stopped:
        yield "the turn is stopped", replace(world, stopped=True)
    if not world.void:
        yield "the approval no longer counts", replace(world, void=True)
    if world.attempts < MOST_ATTEMPTS:
        yield "an attempt claims", claimed(world)
    if may_send(world):
        for acted in ActionEnd:
            yield f"the owner acted: {acted.value}", world_after_send(world, acted)
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
    verdict = claim_tool(LockedTurn(False, world.stopped), row, by, allowed=not world.void, now=world.now)
    world = replace(world, attempts=number)
    if verdict is Claim.ACT:
        epoch = row.held.epoch + 1 if row.held else 1
        owner = Owner(world.now + timedelta(seconds=TIMEOUT_SECONDS), ledger.may_have_happened(row))
        sent_at, holder = row.first_sent_at or world.now, RecordedClaim(epoch, by, False)
        held = replace(row, state=CallState.RESERVED, held=holder, first_sent_at=sent_at)
        deadline = ledger.reservation_deadline(world.now) + timedelta(seconds=TIMEOUT_SECONDS)
        return replace(world, row=held, deadline=deadline, owner=owner)
    state = {Claim.UNKNOWN: CallState.OUTCOME_UNKNOWN, Claim.DENIED: CallState.DENIED}.get(verdict, row.state)
    return replace(world, row=replace(row, state=state))


def may_send(world: World) -> bool:
    """The last check before sending, and the tool's own deadline."""
    owner = world.owner
    reserved = world.row.state is CallState.RESERVED
    return reserved and owner is not None and owner.acted is None and world.now < owner.send_before


def world_after_send(world: World, acted: ActionEnd) -> World:
    """The owner sends, or finds that it cannot; the target honors a key for its documented time."""
    assert world.owner is not None
    world = replace(world, owner=replace(world.owner, acted=acted))
    if acted not in (ActionEnd.RETURNED, ActionEnd.AMBIGUOUS):
        return world
    known = world.key_known_since if world.row.effect is EffectClass.KEYED else None
    if known is not None and world.now - known < timedelta(seconds=KEY_TTL_SECONDS):
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
    return replace(world, row=replace(row, first_sent_at=None) if settle is SettleAction.RELEASE else row)


def broken_promise(world: World) -> str:
    """The broken invariants; empty if all hold."""
    state = world.row.state
    if world.effects > 1:
        return "it happened twice"
    if state in (CallState.FAILED, CallState.DENIED) and world.effects:
        return f"recorded as {state.value}, and it happened"
    if state is CallState.DONE and not world.effects:
        return "recorded as done, and it never happened"
    return ""


@pytest.mark.sized
@pytest.mark.parametrize("effect", [EffectClass.KEYED, EffectClass.OPAQUE])
def test_no_order_of_events_breaks_the_promise_of_an_effect_class(effect: EffectClass) -> None:
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
    step, before = came_by[world]
    return [*way_to(before, came_by), step] if before is not None else []


@pytest.mark.parametrize(
    ("name", "value", "hidden"),
    [
        *((name, "hunter2hunter2", ("hunter2hunter2",)) for name in ("PGPASSWORD", "PASSWORD", "TOKEN", "MYSQL_PWD")),
        *((name, "Swordfish", ("Swordfish",)) for name in ("DB_PASS", "api_keys", "PERDURE_SECRET_DESK")),
        ("JWT_SECRET", f"{'n' * 32},{'o' * 32}", ("n" * 32, f"{'n' * 32},{'o' * 32}", "o" * 32)),
        ("PERDURE_AUDIT_KEY", "first-key\nsecond-key", ("first-key", "first-key\nsecond-key", "second-key")),
        ("DATABASE_URL", "postgres://app:walrus%2F77@db/x", ("walrus/77",)),
        ("DATABASE_URL", "postgres://app:postgres@db/x", ()),
        *((name, "production", ()) for name in ("MODE_KEY", "PERDURE_SECRET_MODE")),
        ("MONKEY", "Swordfish", ()),
        ("PWD", "/srv/app-1", ()),
    ],
)  # fmt: skip
def test_the_secrets_of_an_environment(name: str, value: str, hidden: tuple[str, ...]) -> None:
    assert secrets_of({name: value}) == hidden
