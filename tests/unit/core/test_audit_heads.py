"""Exported heads: a line each, signed; what is no head, or not ours, or of another tenant."""

import json

import pytest

from perdure.core.audit import Fault, FaultKind, Keyring, marks_of, read_head, signed_head

RING, FOREIGN = Keyring.of("k" * 32), Keyring.of("f" * 32)
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
