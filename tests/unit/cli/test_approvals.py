"""The reviewer tool: it shows the exact call, and decides on exactly what it has shown."""

import json
from typing import Any

import pytest

from tests.unit.apps.api_double import ApiDouble, said
from tests.unit.cli.approval import APPROVAL, OPEN
from tests.unit.cli.conftest import Perdure


def test_a_decision_shows_the_exact_arguments_and_sends_the_digest_of_what_was_shown(
    perdure: Perdure, stack: ApiDouble
) -> None:
    stack.will(said(APPROVAL), said({**APPROVAL, "status": "approved"}))
    ended = perdure("approvals", "approve", "a-1", "--comment", "fine")
    assert ended.code == 0
    assert '"order": "1042"' in ended.out and "\\u202eevil\\u001b[8m" in ended.out
    assert "approved: refund" in ended.out
    sent = stack.asked[1]
    assert (sent.method, sent.path) == ("POST", "/v1/approvals/a-1/decision")
    assert sent.body == {"decision": "approve", "digest": "d" * 64, "comment": "fine"}


CHECKPOINT = {
    **APPROVAL,
    "kind": "checkpoint",
    "checkpoint": "before_sending",
    "reason": "A person looks first.",
    "result": {"package": ["\u202elive"]},
}


@pytest.mark.parametrize("command", ["show", "approve"])
def test_a_checkpoint_shows_what_came_of_the_call_and_what_it_was_made_from(
    perdure: Perdure, stack: ApiDouble, command: str
) -> None:
    stack.will(said(CHECKPOINT), said({**CHECKPOINT, "status": "approved"}))
    ended = perdure("approvals", command, "a-1")
    assert ended.code == 0
    assert "before_sending: the result of refund:" in ended.out
    assert '"\\u202elive"' in ended.out and '"order": "1042"' in ended.out
    if command == "show":
        assert "A person looks first." in ended.out


def test_a_checkpoint_on_an_answer_shows_the_answer_and_no_arguments(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said({**CHECKPOINT, "tool": "", "args": {}, "result": "What I would say\u001b[8m"}))
    ended = perdure("approvals", "show", "a-1")
    assert "What I would say\\u001b[8m" in ended.out
    assert "exact arguments" not in ended.out


def test_a_digest_seen_before_is_sent_instead(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said(APPROVAL), said({**APPROVAL, "status": "approved"}))
    perdure("approvals", "approve", "a-1", "--digest", "seen", "--json")
    assert stack.asked[1].body["digest"] == "seen"


@pytest.mark.parametrize(
    ("words", "body"),
    [
        (("reject", "a-1", "--comment", "no"), {"decision": "reject", "comment": "no"}),
        (("reject", "a-1", "--reason", "policy"), {"decision": "reject", "reason_code": "policy"}),
        (("respond", "a-1", "ask later"), {"decision": "respond", "comment": "ask later"}),
        (("edit", "a-1", "--args", '{"order": "7"}'), {"decision": "edit", "args": {"order": "7"}}),
    ],
)
def test_every_decision_says_what_it_must(
    perdure: Perdure, stack: ApiDouble, words: tuple[str, ...], body: dict[str, Any]
) -> None:
    stack.will(said(APPROVAL), said({**APPROVAL, "status": "decided"}))
    assert perdure("approvals", *words).code == 0
    assert stack.asked[1].body == {**body, "digest": "d" * 64}


def test_a_rejection_without_a_reason_is_not_even_asked_about(perdure: Perdure, stack: ApiDouble) -> None:
    assert perdure("approvals", "reject", "a-1", "--comment", " ").code == 2
    assert stack.asked == []


@pytest.mark.parametrize(("answer", "sent"), [(True, 2), (False, 1)])
def test_a_person_at_a_terminal_is_asked_once_more(
    perdure: Perdure, stack: ApiDouble, monkeypatch: pytest.MonkeyPatch, answer: bool, sent: int
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda _question: answer)
    stack.will(said(APPROVAL), said({**APPROVAL, "status": "approved"}))
    ended = perdure("approvals", "approve", "a-1")
    assert (ended.code, len(stack.asked)) == (0 if answer else 1, sent)


@pytest.mark.parametrize(("status", "code"), [("rejected", 5), ("done", 5), ("expired", 6)])
def test_what_is_decided_already_is_not_decided_again(
    perdure: Perdure, stack: ApiDouble, status: str, code: int
) -> None:
    before = {"type": "reject", "by": "rita"}
    decided = {"decided_by": "rita", "decided_at": "2026-03-01T12:00:00Z", "decision": before}
    stack.will(said({**APPROVAL, "status": status, **(decided if code == 5 else {})}))
    ended = perdure("approvals", "approve", "a-1")
    told = {
        5: f"too late: reject by rita at 2026-03-01 12:00:00 UTC; it is {status} now\n",
        6: "too late: it expired undecided at 2999-01-01 00:00:00 UTC\n",
    }
    assert (ended.code, ended.err) == (code, told[code])
    assert len(stack.asked) == 1


def test_an_approval_is_shown_whole_and_nothing_in_it_reaches_the_terminal_raw(
    perdure: Perdure, stack: ApiDouble
) -> None:
    stack.will(said(APPROVAL))
    ended = perdure("approvals", "show", "a-1")
    assert ended.code == 0
    for part in (
        "refund (keyed, risk high) of agent refunds",
        "2026-11-21 10:00:00 UTC  approval.opened by requester",
        "turn:t",
        "dddd…",
    ):
        assert part in ended.out
    assert "approvals reject a-1" in ended.out
    assert not set(ended.out) & {"\u202e", "\x1b"}


def test_lists_and_single_ones_come_as_json(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said({"items": [APPROVAL], "next": None}), said(APPROVAL), said({"items": [APPROVAL], "next": None}))
    listed = perdure("approvals", "list", "--json", "--status", "all")
    assert listed.json["items"][0]["args"] == APPROVAL["args"]
    assert perdure("approvals", "show", "a-1", "--json").json["id"] == "a-1"
    assert "status" not in stack.asked[0].query
    table = perdure("approvals", "list").out
    assert "a-1" in table and json.dumps(APPROVAL["args"]["order"]) in table
    assert stack.asked[2].query["status"] == ["pending"]


def test_a_status_that_there_is_not_is_a_usage_error_that_names_those_there_are(
    perdure: Perdure, stack: ApiDouble
) -> None:
    ended = perdure("approvals", "list", "--status", "bogus")
    assert (ended.code, stack.asked) == (2, [])
    assert "pending, approved" in ended.err and "withdrawn" in ended.err and ended.err.endswith(", all\n")


def test_an_approval_says_who_may_decide_who_has_and_whose_it_is_next(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said(OPEN))
    lines = dict(line.split("  ", 1) for line in perdure("approvals", "show", "a-1").out.splitlines() if "  " in line)
    told = {name: value.strip() for name, value in lines.items()}
    assert told["may decide"] == "rita, tom, una (with the role reviewer)"
    assert told["votes"] == "1 of 2 that are needed"
    assert told["vote"] == "approve by una for tom, 2026-11-21 10:05:00 UTC: looks right\\u001b"
    assert told["on the list of"] == "rita" and told["claimed by"].startswith("rita (")
    assert told["then goes to"].startswith("una, 2999-01-01 00:00:00 UTC (in ")
    assert told["expires"].endswith("then another role decides")


def test_a_row_of_the_history_says_when_who_what_and_its_plain_values(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said(OPEN))
    assert (
        "  2026-11-21 10:05:00 UTC  approval.voted by una (seat tom, n 1)\n" in perdure("approvals", "show", "a-1").out
    )


def test_a_claim_that_has_lapsed_is_nobodys(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said({**OPEN, "claimed_until": "2020-01-01T00:00:00Z"}))
    assert "claimed by" not in perdure("approvals", "show", "a-1").out


@pytest.mark.parametrize("words", [("show", "a-1"), ("list",)])
def test_long_arguments_are_cut_with_a_count_and_a_flag_shows_all(
    perdure: Perdure, stack: ApiDouble, words: tuple[str, ...]
) -> None:
    long = {**APPROVAL, "args": {"text": "x" * 20_000 + "the end"}}
    answer = said(long if words[0] == "show" else {"items": [long], "next": None})
    stack.will(answer, answer)
    brief, full = perdure("approvals", *words).out, perdure("approvals", *words, "--full").out
    assert "more characters" in brief and "the end" not in brief
    assert "more characters" not in full and "the end" in full


def test_a_decision_shows_all_of_the_arguments_however_long(perdure: Perdure, stack: ApiDouble) -> None:
    long = {**APPROVAL, "args": {"text": "x" * 20_000 + "the end"}, "description": "y" * 5_000 + "and its end"}
    stack.will(said(long), said({**long, "status": "approved"}))
    out = perdure("approvals", "approve", "a-1").out
    assert "the end" in out and "and its end" in out


def test_a_first_vote_says_how_many_more_are_needed(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said({**OPEN, "votes": []}), said(OPEN))
    ended = perdure("approvals", "approve", "a-1")
    assert ended.code == 0
    assert "Your vote counts: 1 of 2 that are needed; it still waits.\npending: refund (a-1)\n" in ended.out


def test_an_approved_call_that_is_held_says_until_when_and_how_to_take_it_back(
    perdure: Perdure, stack: ApiDouble
) -> None:
    decided = {**APPROVAL, "status": "approved", "ready_at": "2999-01-01T00:00:00Z"}
    stack.will(said(APPROVAL), said(decided), said(decided))
    assert "It starts at 2999-01-01 00:00:00 UTC" in perdure("approvals", "approve", "a-1").out
    shown = perdure("approvals", "show", "a-1").out
    assert "held" in shown and "approvals withdraw a-1" in shown


@pytest.mark.parametrize(
    ("typed", "sent"),
    [("2", {"reason_code": "not now"}), ("3", {"comment": "3"}), (" too much ", {"comment": "too much"}), ("", None)],
)
def test_a_rejection_at_a_terminal_offers_the_reasons_of_the_policy(
    perdure: Perdure, stack: ApiDouble, monkeypatch: pytest.MonkeyPatch, typed: str, sent: dict[str, str] | None
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda _question: True)
    monkeypatch.setattr("typer.prompt", lambda _question, **_: typed)
    stack.will(
        said({**APPROVAL, "reject_reasons": ["dou\x1bble", "not now"]}), said({**APPROVAL, "status": "rejected"})
    )
    ended = perdure("approvals", "reject", "a-1")
    assert "  1  dou\\u001bble\n  2  not now\n" in ended.out
    assert ended.code == (1 if sent is None else 0)
    bodies = [asked.body for asked in stack.asked[1:]]
    assert bodies == ([] if sent is None else [{"decision": "reject", "digest": "d" * 64, **sent}])


def test_lists_are_narrowed_by_whose_they_are(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said({"items": [OPEN], "next": None}))
    words = ("--mine", "--assignee", "rita", "--role", "reviewer", "--expiring", "60")
    listed = perdure("approvals", "list", *words).out
    assert stack.asked[0].query == {
        "status": ["pending"], "mine": ["true"], "assignee": ["rita"], "role": ["reviewer"], "expiring": ["60"],
        "limit": ["50"],
    }  # fmt: skip
    assert "claimed by rita" in listed and "1/2" in listed


def test_ageing_is_a_table_of_who_keeps_whom_waiting(perdure: Perdure, stack: ApiDouble) -> None:
    row = {
        "role": "reviewer",
        "assignee": "rita",
        "agent": "refunds",
        "waiting": 7,
        "oldest_at": "2020-01-01T00:00:00Z",
        "next_expiry_at": "2999-01-01T00:00:00Z",
        "fallback": {"reviewer": "una", "at": None},
        "buckets": {"1h": 1, "1d": 2, "3d": 4, "older": 0},
    }
    stack.will(said({"items": [row]}), said({"items": []}), said({"items": [row]}))
    cells = perdure("approvals", "ageing").out.splitlines()[1].split()
    assert cells[:8] == ["reviewer", "rita", "refunds", "7", "1", "2", "4", "0"] and cells[-1] == "una"
    assert perdure("approvals", "ageing").out == "Nothing waits.\n"
    assert perdure("approvals", "ageing", "--json").json["items"] == [row]


def test_arguments_that_a_reviewer_changed_are_shown_with_what_was_asked_for(
    perdure: Perdure, stack: ApiDouble
) -> None:
    before, after = {"order": "1042"}, {"order": "7"}
    revised = {**OPEN, "args": after, "revision": {"by": "una", "args": after, "args_before": before}}
    edited = {**APPROVAL, "status": "edited", "args": before, "decision": {"type": "edit", "by": "una", "args": after}}
    stack.will(said(revised), said(edited))
    for _ in range(2):
        out = perdure("approvals", "show", "a-1").out
        assert '    "order": "7"\n' in out and '  -  "order": "1042"\n' in out and '  +  "order": "7"\n' in out


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_response_is_refused_by_its_name_before_anything_is_asked(
    perdure: Perdure, stack: ApiDouble, text: str
) -> None:
    ended = perdure("approvals", "respond", "a-1", text)
    assert ended.code == 2 and ended.err.startswith("TEXT is empty") and stack.asked == []


def test_who_took_it_back_is_told(perdure: Perdure, stack: ApiDouble) -> None:
    withdrawal = {"by": "requester", "at": "2026-11-21T10:00:00+00:00", "comment": "not needed", "was": "pending"}
    stack.will(said({**APPROVAL, "status": "withdrawn", "withdrawal": withdrawal}))
    assert "  by requester, 2026-11-21 10:00:00 UTC: not needed\n" in perdure("approvals", "show", "a-1").out


def test_a_preview_is_asked_for_and_shown_as_what_changes(perdure: Perdure, stack: ApiDouble) -> None:
    seen = {"at": "2026-11-21T10:00:00Z", "before": {"left": 9}, "after": {"left": 4, "to": "\x1b[8m"}}
    failed = {"at": "2026-11-21T10:00:00Z", "fault": "no answer \x1bwithin 8 s"}
    stack.will(said({**APPROVAL, "preview": seen}), said({**APPROVAL, "preview": failed}), said(APPROVAL))
    shown, none, without = perdure("approvals", "preview", "a-1"), *(perdure("approvals", "show", "a-1") for _ in "12")
    assert (stack.asked[0].method, stack.asked[0].path) == ("POST", "/v1/approvals/a-1/preview")
    assert '-  "left": 9' in shown.out and '+  "left": 4' in shown.out and "2026-11-21 10:00:00 UTC" in shown.out
    assert "no preview: no answer" in none.out and "no preview" not in without.out
    assert "\x1b" not in shown.out + none.out
