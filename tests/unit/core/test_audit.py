"""The audit: its chain, its signatures, exported heads, what an erasure took and which calls ran undecided."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.errors import CallerError
from perdure.core import audit
from perdure.core.audit import (
    ChainFault,
    Entry,
    Erasures,
    Head,
    Keyring,
    Link,
    Run,
    frame_fields,
    marks_of,
    name_text,
    row_text,
)

OLD, NEW, OTHER = "old-" * 8, "new-" * 8, "foreign-" * 4
ROW = ("local", "approval.decided", "subject", "actor", "turn", "digest")


@pytest.mark.parametrize("text", ["", "short", ",,", "x" * 31, f"{NEW},short", "\n \n"])
def test_a_missing_or_guessable_audit_key_is_refused(text: str) -> None:
    with pytest.raises(CallerError) as refused:
        Keyring.of(text)
    assert refused.value.code == "audit_key_weak"


@pytest.mark.parametrize("text", [NEW, f"{NEW},{OLD}", f"{NEW}\n{OLD}\n", f" {NEW} , {OLD} "])
def test_the_first_key_signs_and_every_key_verifies(text: str) -> None:
    ring, foreign = Keyring.of(text), Keyring.of(OTHER).sign("x")
    assert ring.sign("x").startswith(Keyring.of(NEW).keys[0].id + ":")
    assert ring.verifies("x", ring.sign("x"))
    assert ring.verifies("x", Keyring.of(OLD).sign("x")) is (OLD in text)
    assert not ring.has_signer(foreign) and not ring.verifies("x", foreign)
    assert not ring.verifies("x", f"{foreign.partition(':')[0]}:{ring.sign('x').partition(':')[2]}"), "each by its id"
    assert NEW not in repr(ring) + ring.sign("x"), "a key is in no text that is shown"


def test_a_signature_holds_for_no_other_row_and_an_invalid_one_for_none() -> None:
    ring, signature = Keyring.of(NEW), Keyring.of(NEW).sign(row_text(*ROW))
    assert ring.verifies(row_text(*ROW), signature)
    for place in range(len(ROW)):
        assert not ring.verifies(row_text(*(each + "x" * (n == place) for n, each in enumerate(ROW))), signature)
    for none in ("", ":", "no", "x" * 100, "é:é", "0" * 8 + ":" + "0" * 64):
        assert not ring.verifies("x", none)
        assert not ring.verifies("x", f"{ring.keys[0].id}:{none}")


def test_a_signature_separates_the_fields_of_a_row() -> None:
    texts = [
        frame_fields("ab", "c"), frame_fields("a", "bc"), frame_fields("abc"), frame_fields("abc", None),
        frame_fields("abc", ""), frame_fields("1:a"),
    ]  # fmt: skip
    assert len(set(texts)) == len(texts)
    assert row_text("a", "b", "c", None, None, "d") != row_text("a", "b", "c", "", "", "d")
    assert audit.head_text("a", 1, "h", "t") != row_text("a", "1", "h", "t", None, "")


K = audit.FaultKind
RING = Keyring.of("k" * 32)
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = 12


def chain(rows: int = ROWS) -> list[Link]:
    """Links as the program and the database write them."""
    links: list[Link] = []
    for seq in range(1, rows + 1):
        at, digest = BEGAN + timedelta(seconds=seq, microseconds=seq), f"digest-{seq}"
        signature = RING.sign(row_text("local", "kind", f"s{seq}", "actor", None, digest))
        row = Entry(at, "kind", f"s{seq}", "actor", None, digest, signature)
        links.append(Link(seq, seq * 10, audit.GENESIS, "", row, digest))
    return chained(links)


def chained(links: list[Link]) -> list[Link]:
    """The chain computed anew over these rows, as any writer of the tables can."""
    done: list[Link] = []
    for seq, link in enumerate(links, 1):
        prev = done[-1].hash if done else audit.GENESIS
        assert link.entry is not None
        done.append(replace(link, seq=seq, prev=prev, hash=audit.link_hash(seq, prev, link.entry)))
    return done


def checked(
    links: list[Link], head: Head | None = None, marks: dict[int, str] | None = None, *, unsigned_through: int = 0
) -> audit.Report:
    said = {seq: frozenset({each}) for seq, each in (marks or {}).items()}
    check = audit.ChainCheck("local", RING, said, unsigned_through)
    check.feed(links)
    return check.report(head or (Head(links[-1].seq, links[-1].hash) if links else Head(0, audit.GENESIS)))


def kinds(report: audit.Report) -> set[tuple[int, audit.FaultKind]]:
    return {(fault.seq, fault.kind) for fault in report.faults}


def changed(links: list[Link], seq: int, **values: Any) -> list[Link]:
    entries = {link.seq: link.entry for link in links if link.entry is not None}
    return [replace(link, entry=replace(entries[seq], **values)) if link.seq == seq else link for link in links]


def test_an_untouched_chain_verifies_for_its_own_tenant_only() -> None:
    report = checked(chain(), marks={3: chain()[2].hash, ROWS: chain()[-1].hash})
    assert (report.ok, report.rows, report.heads_checked, report.faults) == (True, ROWS, 2, ())
    assert report.head == Head(ROWS, chain()[-1].hash)
    assert checked([]).ok
    check = audit.ChainCheck("other", RING, {})
    check.feed(chain())
    assert {fault.kind for fault in check.faults} == {K.SIGNATURE_WRONG} and check.counts.total() == ROWS


EDITS: list[Any] = [
    *({"at": BEGAN}, {"kind": "other"}, {"subject": "other"}, {"actor": None}, {"actor": "other"}),
    *({"turn_id": "other"}, {"body_digest": "other"}, {"signature": RING.sign("other")}, {"signature": ""}),
    {"signature": Keyring.of("f" * 32).sign("other")},
]


@pytest.mark.parametrize("edit", EDITS, ids=str)
@pytest.mark.parametrize("seq", [1, 5, ROWS])
def test_an_edited_column_is_found_at_its_place_and_nowhere_else(edit: dict[str, object], seq: int) -> None:
    report = checked(changed(chain(), seq, **edit))
    assert (seq, K.ROW_CHANGED) in kinds(report)
    assert {fault.seq for fault in report.faults} == {seq}


@pytest.mark.parametrize("edit", EDITS[1:], ids=str)
def test_a_recomputed_chain_fails_without_the_key(edit: dict[str, object]) -> None:
    report = checked(chained(changed(chain(), 5, **edit)))
    said = {K.SIGNATURE_WRONG, K.SIGNATURE_MISSING, K.KEY_UNKNOWN, K.BODY_CHANGED}
    assert kinds(report) <= {(5, each) for each in said} and report.faults


Touch = Callable[[list[Link]], list[Link]]


def without(links: list[Link], seq: int) -> list[Link]:
    return [link for link in links if link.seq != seq]


def fourth(**values: Any) -> Touch:
    return lambda links: [replace(x, **values) if x.seq == 4 else x for x in links]


def swapped(links: list[Link]) -> list[Link]:
    rows = {**{link.seq: link for link in links}, 4: links[6], 7: links[3]}
    return [replace(x, entry=rows[x.seq].entry, found_digest=rows[x.seq].found_digest) for x in links]


@pytest.mark.parametrize(("touch", "expected"), [
    *((lambda c: without(c, 4), {(4, K.LINK_MISSING)}), (lambda c: without(c, 1), {(1, K.LINK_MISSING)})),
    (fourth(entry=None), {(4, K.ROW_MISSING)}),
    (swapped, {(4, K.ROW_CHANGED), (7, K.ROW_CHANGED)}),
    (fourth(hash="0" * 64), {(4, K.ROW_CHANGED), (5, K.LINK_BROKEN)}),
    (fourth(prev="0" * 64), {(4, K.ROW_CHANGED), (4, K.LINK_BROKEN)}),
    (fourth(found_digest="0"), {(4, K.BODY_CHANGED)}),
    (fourth(found_digest=None), {(4, K.BODY_MISSING)}),
    (fourth(found_digest=None, erased=True), set()),  # erased with its person
])  # fmt: skip
def test_deleted_and_moved_rows_are_found(touch: Touch, expected: set[tuple[int, audit.FaultKind]]) -> None:
    report = checked(touch(chain()))
    assert kinds(report) == expected
    assert (report.ok, report.erased) == ((True, 1) if not expected else (False, 0))


def test_a_truncated_chain_is_found_only_by_an_exported_head() -> None:
    whole = chain()
    cut = whole[:7]
    assert checked(cut).ok, "the tables alone cannot tell"
    assert kinds(checked(cut, marks={9: whole[8].hash})) == {(9, K.TAIL_CUT)}
    assert kinds(checked(cut, Head(ROWS, whole[-1].hash))) == {(ROWS, K.HEAD_MOVED)}
    assert kinds(checked([], marks={9: whole[8].hash})) == {(9, K.TAIL_CUT)}


@pytest.mark.parametrize("touch", [lambda c: without(c, 4), swapped, lambda c: changed(c, 4, at=BEGAN)])
def test_a_recomputed_chain_differs_from_an_exported_head(touch: Touch) -> None:
    whole, forged = chain(), chained(touch(chain()))
    assert checked(forged).ok, "the tables alone cannot tell"
    assert kinds(checked(forged, marks={9: whole[8].hash})) == {(9, K.HEAD_DIFFERS)}
    assert checked(forged, marks={3: whole[2].hash}).ok, "a head vouches for what was before it"


def test_rows_older_than_signing_are_accepted_up_to_a_seal() -> None:
    links = chain()
    for seq in (1, 2, 3):
        links = changed(links, seq, signature="")
    links = chained(links)
    assert checked(links, marks={3: links[2].hash}, unsigned_through=3).ok
    assert kinds(checked(links, unsigned_through=2)) == {(3, K.SIGNATURE_MISSING)}


def test_faults_are_counted_beyond_the_reported_ones() -> None:
    check = audit.ChainCheck("local", RING, {}, most_faults=5)
    check.feed(replace(link, found_digest="0") for link in chain())
    report = check.report(Head(ROWS, chain()[-1].hash))
    assert (report.faults_found, len(report.faults), report.ok, report.keys_unknown) == (ROWS, 5, False, {})
    other = audit.ChainCheck("local", FOREIGN, {}, most_faults=5)
    other.feed(chain())
    assert other.report(other.last).keys_unknown == {RING.keys[0].id: ROWS}, "the missing key is named"
    check.add_faults([ChainFault(0, K.ROW_UNCHAINED, 9)])
    check.marks = {ROWS + 1: frozenset({"0"})}
    report = check.report(Head(ROWS, chain()[-1].hash))
    assert report.faults_by_kind == {K.BODY_CHANGED: ROWS, K.ROW_UNCHAINED: 1, K.TAIL_CUT: 1}
    first, *rest = [(fault.seq, fault.kind) for fault in report.faults]
    assert first == (ROWS + 1, K.TAIL_CUT), "what tells of more than a row comes first, and is never left out"
    assert rest == [(0, K.ROW_UNCHAINED), *((seq, K.BODY_CHANGED) for seq in (1, 2, 3))]


FOREIGN = Keyring.of("f" * 32)
HEAD = audit.signed_head(RING, "local", 7, "ab" * 32, "2026-01-01T00:00:00Z")


def test_a_head_is_one_line_and_is_read_back_unchanged() -> None:
    assert HEAD.line().count("\n") == 1 and HEAD.line().endswith("\n")
    assert audit.read_head(HEAD.line()) == HEAD
    assert set(json.loads(HEAD.line())) == {"tenant", "seq", "hash", "at", "key", "hmac"}
    assert HEAD.is_signed_by(RING) and not HEAD.is_signed_by(FOREIGN)
    for line in ("", "{", "[]", HEAD.line()[:-9], '{"tenant": "local"}', HEAD.line().replace(":7", ":0")):
        assert audit.read_head(line) is None


@pytest.mark.parametrize("edit", [{"seq": 8}, {"hash": "cd" * 32}, {"at": "2027-01-01T00:00:00Z"}, {"hmac": "0" * 64}])
def test_a_head_that_was_edited_is_forged(edit: dict[str, object]) -> None:
    edited = HEAD.model_copy(update=edit)
    assert marks_of([edited], RING, "local") == ({}, [ChainFault(edited.seq, K.HEAD_FORGED)])


def test_only_heads_of_this_chain_are_compared_with_it() -> None:
    assert marks_of([HEAD], RING, "other") == ({}, [])
    foreign = audit.signed_head(FOREIGN, "local", 7, "ab" * 32, "t")
    assert marks_of([foreign], RING, "local") == ({}, [ChainFault(7, K.KEY_UNKNOWN, key_id=FOREIGN.keys[0].id)])
    second = audit.signed_head(RING, "local", 7, "cd" * 32, "t")
    assert marks_of([HEAD, second, HEAD], RING, "local") == ({7: frozenset({"ab" * 32, "cd" * 32})}, [])


BEGUN = 7


def entry(
    kind: str = audit.DECISION_KIND, subject: str = "s", actor: str | None = None, turn: str | None = None
) -> Entry:
    return Entry(BEGAN, kind, subject, actor, turn, "digest", "signature")


@pytest.fixture
def erasures() -> Erasures:
    made = Erasures()
    made.add(BEGUN, "ann", ["t1", "t2"], [20])
    made.add(BEGUN + 1, "bob", ["t3"], [])
    return made


@pytest.mark.parametrize(("row", "audit_id", "accounted"), [
    *((entry(actor="ann"), 1, True), (entry(subject="ann"), 1, True), (entry(turn="t2"), 1, True)),
    *((entry(), 20, True), (entry(), 21, False), (entry(turn="t3"), 1, False)),
    (entry(actor="bob", subject="bob"), 1, False),
    *((entry(kind, "ann", "ann", "t1"), 20, False) for kind in audit.KEPT_KINDS),
])  # fmt: skip
def test_an_erasure_explains_just_what_it_named(erasures: Erasures, row: Entry, audit_id: int, accounted: bool) -> None:
    assert erasures.account_for(audit_id, row, BEGUN) is accounted


def test_bodies_named_by_a_repeated_erasure_are_explained_too(erasures: Erasures) -> None:
    for names_none in (None, 1, 20):
        assert not erasures.account_for(20, entry(actor="ann", subject="ann", turn="t1"), names_none)
    erasures.add(BEGUN + 2, "ann", ["t9"], [30])
    assert erasures.account_for(1, entry(turn="t9"), BEGUN) and erasures.account_for(20, entry(), BEGUN + 2)
    assert erasures.known == {BEGUN, BEGUN + 1, BEGUN + 2}


def test_an_erased_name_is_found_by_every_key_and_is_another_in_another_tenant() -> None:
    old, new = Keyring.of("o" * 32), Keyring.of("n" * 32)
    both = Keyring(new.keys + old.keys)
    kept = old.sign(name_text("local", "ann"))
    assert kept in both.signatures(name_text("local", "ann")) and kept not in new.signatures(name_text("local", "ann"))
    assert kept not in both.signatures(name_text("other", "ann")) and "ann" not in kept


@pytest.mark.parametrize(("outcome", "said", "allowed"), [
    (audit.DECISION_KIND, None, True),  # erased with its person: that a decision was made is still known
    *(
        (audit.DECISION_KIND, said, said in ("approve", "edit"))
        for said in ("approve", "edit", "reject", "respond", "")
    ),
    *((f"approval.{outcome}", None, False) for outcome in ("withdrawn", "voided", "expired", "cancelled")),
    *(("approval.withdrawn", "approve", False), (None, None, False)),
])  # fmt: skip
def test_a_call_that_ran_was_allowed_by_exactly_these(outcome: str | None, said: str | None, allowed: bool) -> None:
    assert Run("a1", outcome, said).was_allowed is allowed


SEQS = st.integers(1, 99) | st.none()
SAID = st.sampled_from([*audit.ALLOWING_DECISIONS, "reject", "respond", None])


@given(st.lists(st.builds(Run, st.uuids().map(str), st.sampled_from([*audit.OUTCOME_KINDS, None]), SAID, SEQS, SEQS)))
def test_each_call_that_was_not_allowed_is_one_fault_at_its_first_row(runs: list[Run]) -> None:
    faults = [ChainFault(r.seq or 0, K.RAN_UNDECIDED, r.audit_id, r.approval_id) for r in runs if not r.was_allowed]
    assert audit.find_undecided(runs) == faults
