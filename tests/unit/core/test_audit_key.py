"""Signatures: which keys are taken, that only the very fields verify, and that a new key leaves old rows be."""

import pytest

from perdure.contracts.errors import CallerError
from perdure.core.audit import Keyring, framed, head_text, row_text

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
