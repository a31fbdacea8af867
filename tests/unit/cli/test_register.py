"""`perdure users register`: the first person with the setup code or the local administrator's token, others invited."""

import pytest

from perdure.client import signed_in_words
from tests.unit.apps.api_double import ApiDouble, said
from tests.unit.cli.approval import APPROVAL
from tests.unit.cli.conftest import Perdure

DONE = {
    "user": {"id": "u", "name": "boss", "display_name": "boss", "roles": ["requester", "admin"]},
    "access_token": "hush-access",
    "refresh_token": "hush-refresh",
    "expires_in": 900,
}


@pytest.mark.parametrize(
    ("words", "sent", "token"),
    [
        (["--setup-code", "ABCD-EFGH"], {"setup_code": "ABCD-EFGH"}, None),
        (["--invitation", "perdure_invitation_x"], {"invitation": "perdure_invitation_x"}, None),
        ([], {}, "Bearer t-admin"),
    ],
)
def test_a_person_registers_with_a_password_that_is_asked_for(
    perdure: Perdure,
    stack: ApiDouble,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    sent: dict[str, str],
    token: str | None,
) -> None:
    monkeypatch.setattr("typer.prompt", lambda *_, **given: "green tractors sing" if given["hide_input"] else "")
    stack.will(said(DONE, 201))
    ended = perdure("users", "register", "boss", *words)
    assert (ended.code, ended.out) == (0, "Registered boss: requester, admin. Sign in at /sign-in.\n")
    (asked,) = stack.asked
    assert (asked.method, asked.path) == ("POST", "/v1/auth/register")
    assert asked.body == {"name": "boss", "password": "green tractors sing", **sent}
    assert asked.headers.get("authorization") == token and "idempotency-key" not in asked.headers


def test_a_registration_that_is_refused_says_why_and_as_json_no_token_is_printed(
    perdure: Perdure, stack: ApiDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("typer.prompt", lambda *_, **__: "green tractors sing")
    refused = {"error": {"code": "setup_code_invalid", "message": "This setup code has expired", "details": {}}}
    stack.will(said(refused, 403), said(DONE, 201))
    ended = perdure("users", "register", "boss", "--setup-code", "x")
    assert ended.code != 0 and "This setup code has expired" in ended.err
    shown = perdure("users", "register", "boss", "--setup-code", "x", "--json")
    assert shown.json["user"]["name"] == "boss" and "hush" not in shown.out


@pytest.mark.parametrize(
    ("signed_in", "words"),
    [
        ({"how": "password"}, "signed in by password"),
        ({"how": "password", "invited_by": "ann"}, "signed in by password (account opened by invitation of ann)"),
        ({"how": "invitation", "created_by": "ann"}, "signed in by password created by ann"),
        (
            {"how": "token", "created_by": "ann", "created_by_through": [{"by": "root"}]},
            "signed in by token created by ann through root",
        ),
        ({"how": "local"}, "signed in by local token"),
        ({"how": "oidc"}, "signed in by organization"),
        ({"how": "chat", "created_by": "unknown"}, "signed in by chat token created by unknown"),
        ({"how": "something new"}, ""),
        (None, ""),
        ("password", ""),
    ],
)
def test_how_a_decider_was_signed_in_is_told_in_words(signed_in: object, words: str) -> None:
    assert signed_in_words({"signed_in": signed_in}) == words
    assert signed_in_words({}) == signed_in_words(None) == ""


def test_the_history_shows_how_each_decider_was_signed_in(perdure: Perdure, stack: ApiDouble) -> None:
    data = {"type": "approve", "signed_in": {"how": "token", "created_by": "root"}}
    entry = {"what": "approval.decided", "at": "2026-11-21T10:00:00Z", "by": "rita", "data": data}
    stack.will(said({**APPROVAL, "history": [entry]}))
    assert "(type approve, signed in by token created by root)" in perdure("approvals", "show", "a-1").out
