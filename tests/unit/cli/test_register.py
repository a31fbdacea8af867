"""`perdure users register`: the first person with the setup code or the local administrator's token, others invited."""

import pytest
from syrupy.assertion import SnapshotAssertion

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
    snapshot: SnapshotAssertion,
) -> None:
    monkeypatch.setattr("typer.prompt", lambda *_, **given: "green tractors sing" if given["hide_input"] else "")
    stack.will(said(DONE, 201))
    ended = perdure("users", "register", "boss", *words)
    assert ended.code == 0 and "hush" not in ended.out
    if not words:
        assert ended.seen == snapshot
    (asked,) = stack.asked
    assert (asked.method, asked.path) == ("POST", "/v1/auth/register")
    assert asked.body == {"name": "boss", "password": "green tractors sing", **sent}
    assert asked.headers.get("authorization") == token and "idempotency-key" not in asked.headers


def test_a_registration_can_be_refused_and_as_json_no_token_is_printed(
    perdure: Perdure, stack: ApiDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("typer.prompt", lambda *_, **__: "green tractors sing")
    refused = {"error": {"code": "setup_code_invalid", "message": "This setup code has expired", "details": {}}}
    stack.will(said(refused, 403), said(DONE, 201))
    ended = perdure("users", "register", "boss", "--setup-code", "x")
    assert ended.code != 0 and "setup_code_invalid" in ended.err
    shown = perdure("users", "register", "boss", "--setup-code", "x", "--json")
    assert shown.json["user"]["name"] == "boss" and "hush" not in shown.out


@pytest.mark.parametrize(
    ("signed_in", "named"),
    [
        ({"how": "password", "invited_by": "ann"}, ["ann"]),
        ({"how": "invitation", "created_by": "ann"}, ["ann"]),
        ({"how": "token", "created_by": "ann", "created_by_through": [{"by": "root"}]}, ["ann", "root"]),
        ({"how": "chat", "created_by": "unknown"}, ["unknown"]),
    ],
)
def test_how_a_decider_signed_in_names_who_vouched(signed_in: object, named: list[str]) -> None:
    words = signed_in_words({"signed_in": signed_in})
    assert all(name in words for name in named)


def test_each_way_to_sign_in_has_its_words_and_an_unknown_way_has_none() -> None:
    words = [signed_in_words({"signed_in": {"how": how}}) for how in ("password", "local", "oidc", "token")]
    assert len(set(words)) == 4 and all(words)
    for data in ({"signed_in": {"how": "something new"}}, {"signed_in": None}, {"signed_in": "password"}, {}, None):
        assert signed_in_words(data) == ""


def test_the_history_shows_how_each_decider_was_signed_in(perdure: Perdure, stack: ApiDouble) -> None:
    data = {"type": "approve", "signed_in": {"how": "token", "created_by": "root"}}
    entry = {"what": "approval.decided", "at": "2026-11-21T10:00:00Z", "by": "rita", "data": data}
    stack.will(said({**APPROVAL, "history": [entry]}))
    out = perdure("approvals", "show", "a-1").out
    assert "token" in out and "root" in out
