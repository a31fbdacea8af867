"""The audit: its chain, its signatures, exported heads, what an erasure took and which calls ran undecided."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.errors import CallerError
from perdure.core.audit import (
    DECIDED,
    GENESIS,
    GIVEN,
    KEPT_KINDS,
    OUTCOMES,
    ChainCheck,
    Entry,
    Erasures,
    Fault,
    FaultKind,
    Head,
    Keyring,
    Link,
    Report,
    Run,
    framed,
    head_text,
    link_hash,
    marks_of,
    name_text,
    read_head,
    row_text,
    signed_head,
    undecided,
)

OLD, NEW, OTHER = "old-" * 8, "new-" * 8, "foreign-" * 4
ROW = ("local", "approval.decided", "subject", "actor", "turn", "digest")


@pytest.mark.parametrize("text", ["", "short", ",,", "x" * 31, f"{NEW},short", "\n \n"])
def test_no_key_and_a_key_that_can_be_guessed_are_refused(text: str) -> None:
    with pytest.raises(CallerError) as refused:
        Keyring.of(text)
    assert refused.value.code == "audit_key_weak"


@pytest.mark.parametrize("text", [NEW, f"{NEW},{OLD}", f"{NEW}\n{OLD}\n", f" {NEW} , {OLD} "])
def test_the_first_key_signs_and_every_key_verifies(text: str) -> None:
    ring = Keyring.of(text)
    assert ring.sign("x").startswith(Keyring.of(NEW).keys[0].id + ":")
    assert ring.verifies("x", ring.sign("x"))
    assert ring.verifies("x", Keyring.of(OLD).sign("x")) is (OLD in text)


def test_a_key_is_in_no_text_that_is_shown() -> None:
    assert NEW not in repr(Keyring.of(NEW)) + Keyring.of(NEW).sign("x")


def test_a_foreign_key_is_not_known_and_verifies_nothing() -> None:
    signature = Keyring.of(OTHER).sign("x")
    assert not Keyring.of(NEW).knows(signature) and not Keyring.of(NEW).verifies("x", signature)


@pytest.mark.parametrize("place", range(len(ROW)))
def test_a_signature_holds_for_no_other_row(place: int) -> None:
    ring = Keyring.of(NEW)
    signature = ring.sign(row_text(*ROW))
    changed = [*ROW]
    changed[place] += "x"
    assert ring.verifies(row_text(*ROW), signature)
    assert not ring.verifies(row_text(*changed), signature)


@pytest.mark.parametrize("signature", ["", ":", "no", "x" * 100, "é:é", "0" * 8 + ":" + "0" * 64])
def test_what_is_no_signature_verifies_nothing(signature: str) -> None:
    ring = Keyring.of(NEW)
    assert not ring.verifies("x", signature)
    assert not ring.verifies("x", f"{ring.keys[0].id}:{signature}")


def test_fields_cannot_be_shifted_into_each_other() -> None:
    texts = [framed("ab", "c"), framed("a", "bc"), framed("abc"), framed("abc", None), framed("abc", ""), framed("1:a")]
    assert len(set(texts)) == len(texts)
    assert row_text("a", "b", "c", None, None, "d") != row_text("a", "b", "c", "", "", "d")
    assert head_text("a", 1, "h", "t") != row_text("a", "1", "h", "t", None, "")


RING = Keyring.of("k" * 32)
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = 12


def chain(rows: int = ROWS) -> list[Link]:
    """Links as the program and the database write them."""
    links: list[Link] = []
    for seq in range(1, rows + 1):
        digest = f"digest-{seq}"
        signature = RING.sign(row_text("local", "kind", f"s{seq}", "actor", None, digest))
        at = BEGAN + timedelta(seconds=seq, microseconds=seq)
        links.append(
            Link(seq, seq * 10, GENESIS, "", Entry(at, "kind", f"s{seq}", "actor", None, digest, signature), digest)
        )
    return chained(links)


def chained(links: list[Link]) -> list[Link]:
    """The chain computed anew over these rows, as anybody can who writes to the tables."""
    done: list[Link] = []
    for seq, link in enumerate(links, 1):
        prev = done[-1].hash if done else GENESIS
        assert link.entry is not None
        done.append(replace(link, seq=seq, prev=prev, hash=link_hash(seq, prev, link.entry)))
    return done


def checked(
    links: list[Link], head: Head | None = None, marks: dict[int, str] | None = None, *, unsigned_through: int = 0
) -> Report:
    """What the verification says."""
    said = {seq: frozenset({each}) for seq, each in (marks or {}).items()}
    check = ChainCheck("local", RING, said, unsigned_through)
    check.feed(links)
    return check.report(head or (Head(links[-1].seq, links[-1].hash) if links else Head(0, GENESIS)))


def kinds(report: Report) -> set[tuple[int, FaultKind]]:
    return {(fault.seq, fault.kind) for fault in report.faults}


def changed(links: list[Link], seq: int, **values: object) -> list[Link]:
    """The chain with a row changed behind its back."""
    link = links[seq - 1]
    assert link.entry is not None
    return [*links[: seq - 1], replace(link, entry=replace(link.entry, **values)), *links[seq:]]  # type: ignore[arg-type]


def test_an_untouched_chain_has_no_fault_and_an_empty_one_neither() -> None:
    report = checked(chain(), marks={3: chain()[2].hash, ROWS: chain()[-1].hash})
    assert (report.ok, report.rows, report.heads_checked, report.faults) == (True, ROWS, 2, ())
    assert report.head == Head(ROWS, chain()[-1].hash)
    assert checked([]).ok


EDITS = [
    {"at": BEGAN},
    {"kind": "other"},
    {"subject": "other"},
    {"actor": None},
    {"actor": "other"},
    {"turn_id": "other"},
    {"body_digest": "other"},
    {"signature": RING.sign("other")},
    {"signature": ""},
    {"signature": Keyring.of("f" * 32).sign("other")},
]


@pytest.mark.parametrize("edit", EDITS, ids=str)
@pytest.mark.parametrize("seq", [1, 5, ROWS])
def test_an_edited_column_is_found_at_its_place_and_nowhere_else(edit: dict[str, object], seq: int) -> None:
    report = checked(changed(chain(), seq, **edit))
    assert (seq, FaultKind.ROW_CHANGED) in kinds(report)
    assert {fault.seq for fault in report.faults} == {seq}


@pytest.mark.parametrize("edit", EDITS[1:], ids=str)
def test_who_computes_the_chain_anew_still_lacks_the_key(edit: dict[str, object]) -> None:
    report = checked(chained(changed(chain(), 5, **edit)))
    said = {FaultKind.SIGNATURE_WRONG, FaultKind.SIGNATURE_MISSING, FaultKind.KEY_UNKNOWN, FaultKind.BODY_CHANGED}
    assert kinds(report) <= {(5, each) for each in said} and report.faults


def without(links: list[Link], seq: int) -> list[Link]:
    return [link for link in links if link.seq != seq]


def swapped(links: list[Link]) -> list[Link]:
    first, second = links[3], links[6]
    return [
        replace(link, entry=second.entry, found_digest=second.found_digest)
        if link is first
        else replace(link, entry=first.entry, found_digest=first.found_digest)
        if link is second
        else link
        for link in links
    ]


@pytest.mark.parametrize(
    ("touch", "expected"),
    [
        (lambda c: without(c, 4), {(4, FaultKind.LINK_MISSING)}),
        (lambda c: without(c, 1), {(1, FaultKind.LINK_MISSING)}),
        (lambda c: [replace(x, entry=None) if x.seq == 4 else x for x in c], {(4, FaultKind.ROW_MISSING)}),
        (swapped, {(4, FaultKind.ROW_CHANGED), (7, FaultKind.ROW_CHANGED)}),
        (
            lambda c: [replace(x, hash="0" * 64) if x.seq == 4 else x for x in c],
            {(4, FaultKind.ROW_CHANGED), (5, FaultKind.LINK_BROKEN)},
        ),
        (
            lambda c: [replace(x, prev="0" * 64) if x.seq == 4 else x for x in c],
            {(4, FaultKind.ROW_CHANGED), (4, FaultKind.LINK_BROKEN)},
        ),
        (lambda c: [replace(x, found_digest="0") if x.seq == 4 else x for x in c], {(4, FaultKind.BODY_CHANGED)}),
        (lambda c: [replace(x, found_digest=None) if x.seq == 4 else x for x in c], {(4, FaultKind.BODY_MISSING)}),
    ],
)
def test_what_is_gone_or_moved_is_found(
    touch: Callable[[list[Link]], list[Link]], expected: set[tuple[int, FaultKind]]
) -> None:
    assert kinds(checked(touch(chain()))) == expected


def test_a_body_that_was_erased_with_its_person_is_no_fault() -> None:
    links = [replace(link, found_digest=None, erased=True) if link.seq == 4 else link for link in chain()]
    assert (checked(links).ok, checked(links).erased) == (True, 1)


def test_a_tail_that_was_cut_is_told_by_the_head_that_was_exported_and_by_nothing_else() -> None:
    whole = chain()
    cut = whole[:7]
    assert checked(cut).ok, "the tables alone cannot tell"
    assert kinds(checked(cut, marks={9: whole[8].hash})) == {(9, FaultKind.TAIL_CUT)}
    assert kinds(checked(cut, Head(ROWS, whole[-1].hash))) == {(ROWS, FaultKind.HEAD_MOVED)}
    assert kinds(checked([], marks={9: whole[8].hash})) == {(9, FaultKind.TAIL_CUT)}


@pytest.mark.parametrize(
    "touch",
    [lambda c: without(c, 4), lambda c: [*c[:3], c[6], *c[4:6], c[3], *c[7:]], lambda c: changed(c, 4, at=BEGAN)],
)
def test_a_chain_computed_anew_without_a_row_in_another_order_or_at_another_time_differs_from_an_exported_head(
    touch: Callable[[list[Link]], list[Link]],
) -> None:
    whole, forged = chain(), chained(touch(chain()))
    assert checked(forged).ok, "the tables alone cannot tell"
    assert kinds(checked(forged, marks={9: whole[8].hash})) == {(9, FaultKind.HEAD_DIFFERS)}
    assert checked(forged, marks={3: whole[2].hash}).ok, "a head vouches for what was before it"


def test_rows_older_than_signing_are_taken_as_far_as_a_seal_reaches() -> None:
    links = chain()
    for seq in (1, 2, 3):
        links = changed(links, seq, signature="")
    links = chained(links)
    assert checked(links, marks={3: links[2].hash}, unsigned_through=3).ok
    assert kinds(checked(links, unsigned_through=2)) == {(3, FaultKind.SIGNATURE_MISSING)}


def test_faults_are_counted_beyond_those_that_are_told() -> None:
    check = ChainCheck("local", RING, {}, most_faults=5)
    check.feed(replace(link, found_digest="0") for link in chain())
    report = check.report(Head(ROWS, chain()[-1].hash))
    assert (report.faults_found, len(report.faults), report.ok) == (ROWS, 5, False)
    check.note([Fault(0, FaultKind.ROW_UNCHAINED, 9)])
    check.marks = {ROWS + 1: frozenset({"0"})}
    report = check.report(Head(ROWS, chain()[-1].hash))
    assert report.faults_by_kind == {FaultKind.BODY_CHANGED: ROWS, FaultKind.ROW_UNCHAINED: 1, FaultKind.TAIL_CUT: 1}
    first, *rest = [(fault.seq, fault.kind) for fault in report.faults]
    assert first == (ROWS + 1, FaultKind.TAIL_CUT), "what tells of more than a row comes first, and is never left out"
    assert rest == [(0, FaultKind.ROW_UNCHAINED), *((seq, FaultKind.BODY_CHANGED) for seq in (1, 2, 3))]


def test_another_tenants_rows_do_not_verify_as_ours() -> None:
    check = ChainCheck("other", RING, {})
    check.feed(chain())
    assert {fault.kind for fault in check.faults} == {FaultKind.SIGNATURE_WRONG}
    assert check.counts.total() == ROWS


FOREIGN = Keyring.of("f" * 32)
HEAD = signed_head(RING, "local", 7, "ab" * 32, "2026-01-01T00:00:00Z")


def test_a_head_is_one_line_and_comes_back_as_it_was() -> None:
    assert HEAD.line().count("\n") == 1 and HEAD.line().endswith("\n")
    assert read_head(HEAD.line()) == HEAD
    assert set(json.loads(HEAD.line())) == {"tenant", "seq", "hash", "at", "key", "hmac"}
    assert HEAD.is_signed_by(RING) and not HEAD.is_signed_by(FOREIGN)


@pytest.mark.parametrize(
    "line", ["", "{", "[]", HEAD.line()[:-9], '{"tenant": "local"}', HEAD.line().replace(":7", ":0")]
)
def test_what_is_no_head_is_left_out(line: str) -> None:
    assert read_head(line) is None


@pytest.mark.parametrize("edit", [{"seq": 8}, {"hash": "cd" * 32}, {"at": "2027-01-01T00:00:00Z"}, {"hmac": "0" * 64}])
def test_a_head_that_was_edited_is_forged(edit: dict[str, object]) -> None:
    edited = HEAD.model_copy(update=edit)
    assert marks_of([edited], RING, "local") == ({}, [Fault(edited.seq, FaultKind.HEAD_FORGED)])


def test_heads_of_others_say_nothing_of_us_and_one_by_an_unknown_key_is_told() -> None:
    assert marks_of([HEAD], RING, "other") == ({}, [])
    foreign = signed_head(FOREIGN, "local", 7, "ab" * 32, "t")
    assert marks_of([foreign], RING, "local") == ({}, [Fault(7, FaultKind.KEY_UNKNOWN)])


def test_two_heads_of_one_place_with_different_hashes_are_both_kept() -> None:
    second = signed_head(RING, "local", 7, "cd" * 32, "t")
    marks, forged = marks_of([HEAD, second, HEAD], RING, "local")
    assert marks == {7: frozenset({"ab" * 32, "cd" * 32})} and not forged


BEGUN = 7


def entry(
    kind: str = "approval.decided", subject: str = "s", actor: str | None = None, turn: str | None = None
) -> Entry:
    return Entry(datetime(2026, 1, 1, tzinfo=UTC), kind, subject, actor, turn, "digest", "signature")


@pytest.fixture
def erasures() -> Erasures:
    made = Erasures()
    made.add(BEGUN, "ann", ["t1", "t2"], [20])
    made.add(BEGUN + 1, "bob", ["t3"], [])
    return made


@pytest.mark.parametrize(
    ("row", "audit_id", "accounted"),
    [
        (entry(actor="ann"), 1, True),
        (entry(subject="ann"), 1, True),
        (entry(turn="t2"), 1, True),
        (entry(), 20, True),
        (entry(), 21, False),
        (entry(turn="t3"), 1, False),
        (entry(actor="bob", subject="bob"), 1, False),
        *((entry(kind, "ann", "ann", "t1"), 20, False) for kind in KEPT_KINDS),
    ],
)
def test_an_erasure_accounts_for_what_it_named_and_for_nothing_else(
    erasures: Erasures, row: Entry, audit_id: int, accounted: bool
) -> None:
    assert erasures.account_for(audit_id, row, BEGUN) is accounted


@pytest.mark.parametrize("erased_by", [None, 1, 20])
def test_a_body_that_names_no_erasure_is_not_accounted_for(erasures: Erasures, erased_by: int | None) -> None:
    assert not erasures.account_for(20, entry(actor="ann", subject="ann", turn="t1"), erased_by)


def test_what_an_erasure_named_when_it_was_asked_for_again_counts_as_well(erasures: Erasures) -> None:
    erasures.add(BEGUN + 2, "ann", ["t9"], [30])
    assert erasures.account_for(1, entry(turn="t9"), BEGUN) and erasures.account_for(20, entry(), BEGUN + 2)
    assert erasures.known == {BEGUN, BEGUN + 1, BEGUN + 2}


def test_an_erased_name_is_found_by_every_key_and_is_another_in_another_tenant() -> None:
    old, new = Keyring.of("o" * 32), Keyring.of("n" * 32)
    both = Keyring(new.keys + old.keys)
    kept = old.sign(name_text("local", "ann"))
    assert kept in both.signatures(name_text("local", "ann")) and kept not in new.signatures(name_text("local", "ann"))
    assert kept not in both.signatures(name_text("other", "ann")) and "ann" not in kept


@pytest.mark.parametrize(
    ("outcome", "said", "allowed"),
    [
        (DECIDED, "approve", True),
        (DECIDED, "edit", True),
        (DECIDED, None, True),  # erased with its person: that somebody decided is still known
        (DECIDED, "reject", False),
        (DECIDED, "respond", False),
        (DECIDED, "", False),
        ("approval.withdrawn", None, False),
        ("approval.voided", None, False),
        ("approval.expired", None, False),
        ("approval.cancelled", None, False),
        ("approval.withdrawn", "approve", False),
        (None, None, False),
    ],
)
def test_a_call_that_ran_was_allowed_by_exactly_these(outcome: str | None, said: str | None, allowed: bool) -> None:
    assert Run("a1", outcome, said).was_allowed is allowed


RUNS = st.builds(
    Run,
    st.uuids().map(str),
    st.sampled_from([*OUTCOMES, None]),
    st.sampled_from([*GIVEN, "reject", "respond", None]),
    st.integers(1, 99) | st.none(),
    st.integers(1, 99) | st.none(),
)


@given(st.lists(RUNS))
def test_each_that_was_not_allowed_is_one_fault_at_its_approvals_first_row(runs: list[Run]) -> None:
    assert undecided(runs) == [
        Fault(run.seq or 0, FaultKind.RAN_UNDECIDED, run.audit_id, run.approval_id)
        for run in runs
        if not run.was_allowed
    ]
