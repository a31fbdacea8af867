"""The pure verification: a chain of ours as it must be, and every way in which somebody may touch it."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from perdure.core.audit import (
    GENESIS,
    ChainCheck,
    Entry,
    Fault,
    FaultKind,
    Head,
    Keyring,
    Link,
    Report,
    link_hash,
    row_text,
)

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
