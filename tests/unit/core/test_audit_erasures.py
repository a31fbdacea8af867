"""What an erasure accounts for: what its signed row named, and never the rows about erasures."""

from datetime import UTC, datetime

import pytest

from perdure.core.audit import KEPT_KINDS, Entry, Erasures, Keyring, name_text

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
