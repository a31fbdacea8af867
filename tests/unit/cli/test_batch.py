"""`approvals batch`: several at once, each for itself."""

import pytest

from tests.unit.apps.api_double import ApiDouble, said
from tests.unit.cli.approval import APPROVAL
from tests.unit.cli.conftest import Perdure

FIRST = {**APPROVAL, "risk": "low"}
SECOND = {**FIRST, "id": "a-2", "digest": "e" * 64, "args": {"order": "7"}}


def test_several_are_shown_and_decided_in_one_request_with_the_digests_that_were_shown(
    perdure: Perdure, stack: ApiDouble
) -> None:
    answers = [{"id": "a-1", "status": "approved"}, {"id": "a-2", "status": "approved"}]
    stack.will(said(FIRST), said(SECOND), said({"items": answers}))
    ended = perdure("approvals", "batch", "approve", "a-1", "a-2", "a-1", "--comment", "fine")
    assert ended.code == 0
    assert '"order": "1042"' in ended.out and '"order": "7"' in ended.out
    assert [line.split() for line in ended.out.splitlines()[-2:]] == [["a-1", "approved"], ["a-2", "approved"]]
    assert stack.asked[2].path == "/v1/approvals/decisions"
    assert stack.asked[2].body == {
        "items": [
            {"id": "a-1", "digest": "d" * 64, "decision": "approve", "comment": "fine"},
            {"id": "a-2", "digest": "e" * 64, "decision": "approve", "comment": "fine"},
        ]
    }


STATUS = {"not_in_bulk": 422, "approval_expired": 410}


def refusal(code: str) -> dict[str, object]:
    """One item that was refused."""
    return {"id": "a-1", "error": {"code": code, "message": "no\x1b", "details": {}, "status": STATUS.get(code, 409)}}


@pytest.mark.parametrize(
    ("codes", "exit_code"),
    [
        (("not_in_bulk", None), 2),
        (("already_decided", "already_voted"), 5),
        (("approval_expired", None), 6),
        (("claimed", None), 1),
        (("already_decided", "approval_expired"), 1),
    ],
)
def test_the_exit_code_is_the_one_that_all_failures_share(
    perdure: Perdure, stack: ApiDouble, codes: tuple[str, str | None], exit_code: int
) -> None:
    second = {"id": "a-2", "status": "rejected"} if codes[1] is None else {**refusal(codes[1]), "id": "a-2"}
    stack.will(said(FIRST), said(SECOND), said({"items": [refusal(codes[0]), second]}))
    ended = perdure("approvals", "batch", "reject", "a-1", "a-2", "--reason", "double")
    assert ended.code == exit_code
    assert codes[0] in ended.out and "\x1b" not in ended.out


def test_what_waits_no_longer_or_is_not_there_is_not_sent(perdure: Perdure, stack: ApiDouble) -> None:
    gone = {"error": {"code": "approval_not_found", "message": "there is no such approval", "details": {}}}
    stack.will(said({**FIRST, "status": "expired"}), said(gone, 404), said({**SECOND, "status": "rejected"}))
    ended = perdure("approvals", "batch", "approve", "a-1", "a-9", "a-2", "--json")
    assert ended.code == 1 and len(stack.asked) == 3
    assert [each["error"]["code"] for each in ended.json["items"]] == [
        "approval_expired", "approval_not_found", "already_decided",
    ]  # fmt: skip
