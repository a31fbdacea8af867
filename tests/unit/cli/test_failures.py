"""Exit codes and what is said beside them."""

import json
from typing import Any

import pytest

from tests.unit.apps.api_double import ApiDouble, said
from tests.unit.cli.conftest import Perdure


def refusal(status: int, code: str, details: dict[str, Any] | None = None) -> Any:
    return said({"error": {"code": code, "message": "said so", "details": details or {}, "request_id": "r"}}, status)


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (404, "turn_not_found", 4),
        (409, "already_decided", 5),
        (409, "already_settled", 5),
        (410, "approval_expired", 6),
        (422, "invalid_input", 2),
        (409, "digest_differs", 1),
        (403, "own_request", 1),
        (401, "token_invalid", 1),
        (500, "internal", 1),
    ],
)
def test_a_refusal_has_its_exit_code(
    perdure: Perdure, stack: ApiDouble, status: int, code: str, exit_code: int
) -> None:
    stack.will(refusal(status, code), refusal(status, code))
    plain, as_json = perdure("turns", "show", "t"), perdure("turns", "show", "t", "--json")
    assert (plain.code, as_json.code) == (exit_code, exit_code)
    assert plain.out == "" and code in plain.err
    assert json.loads(as_json.err)["error"]["code"] == code


def test_who_comes_second_is_told_the_first_decision(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(refusal(409, "already_decided", {"decision": {"type": "reject", "by": "rita", "comment": "no"}}))
    err = perdure("turns", "show", "t").err
    assert "reject" in err and "rita" in err


def test_input_that_does_not_fit_is_named_field_by_field(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(refusal(422, "invalid_input", {"fields": [{"field": "body.title", "problem": "too long"}]}))
    err = perdure("turns", "show", "t").err
    assert "body.title" in err and "too long" in err


def test_a_message_from_outside_cannot_command_the_terminal(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said({"error": {"code": "x", "message": "\x1b[2J\u202e", "details": {}}}, 404))
    assert perdure("turns", "show", "t").err == "\\u001b[2J\\u202e (x)\n"


@pytest.mark.parametrize(
    "words", [("nonsense",), ("turns", "show"), ("turns", "list", "--limit", "no"), ("users", "add")]
)
def test_a_wrong_command_line_is_a_usage_error(perdure: Perdure, words: tuple[str, ...]) -> None:
    assert perdure(*words).code == 2


@pytest.mark.parametrize(
    "words",
    [
        *(("approvals", verb) for verb in ("approve", "edit", "reject", "respond", "batch", "withdraw")),
        ("effects", "settle"),
        ("prompts", "promote"),
        ("prompts", "archive"),
    ],
)
def test_every_command_that_asks_has_an_option_not_to(perdure: Perdure, words: tuple[str, ...]) -> None:
    assert "--yes" in perdure(*words, "--help").out


def test_a_full_quota_is_told_with_the_commands_that_help(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(refusal(429, "quota_reached", {"scope": "user", "retry_after_seconds": None}))
    ended = perdure("turns", "show", "t")
    assert ended.code == 1 and "files usage" in ended.err and "None" not in ended.err
