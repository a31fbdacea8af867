"""The reviewer tool shows the exact call, decides on exactly what it has shown, and opens arguments in an editor until
they fit."""

import json
import re
import resource
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from perdure.apps.folder import find_apps
from perdure.apps.registry import published_from_locks
from perdure.apps.scaffold import scaffold
from perdure.cli.approvals.decide import without_comments
from perdure.core.calls.arguments import InvalidArgumentText, parse_object
from tests.unit.apps.api_double import Reply, reply
from tests.unit.cli.conftest import APPROVAL, OPEN, Ended, Perdure, refusal

CHECKPOINT = {
    **APPROVAL, "kind": "checkpoint", "checkpoint": "before_sending", "reason": "A person looks first.",
    "result": {"package": ["\u202elive"]},
}  # fmt: skip


@pytest.mark.parametrize("command", ["show", "approve"])
def test_a_checkpoint_shows_what_came_of_the_call_and_what_it_was_made_from(cli: Perdure, command: str) -> None:
    ended = cli(f"approvals {command} a-1", reply(CHECKPOINT), reply({**CHECKPOINT, "status": "approved"}))
    assert ended.code == 0 and "before_sending" in ended.out
    assert '"\\u202elive"' in ended.out and '"order": "1042"' in ended.out
    assert command == "approve" or "A person looks first." in ended.out


@pytest.mark.parametrize("words", ["show a-1", "list"])
def test_long_arguments_are_cut_unless_a_flag_or_a_decision_shows_all(cli: Perdure, words: str) -> None:
    long = {**APPROVAL, "args": {"text": "x" * 20_000 + "the end"}, "description": "y" * 5_000 + "and its end"}
    answer = reply(long if words == "show a-1" else {"items": [long], "next": None})
    brief, full = cli(f"approvals {words}", answer).out, cli(f"approvals {words} --full", answer).out
    assert "the end" not in brief and len(brief) < len(full) - 10_000
    assert "the end" in full
    out = cli("approvals approve a-1", reply(long), reply({**long, "status": "approved"})).out
    assert "the end" in out and "and its end" in out


@pytest.mark.parametrize(("typed", "sent"), [
    ("2", {"reason_code": "not now"}), ("3", {"comment": "3"}), (" too much ", {"comment": "too much"}), ("", None),
])  # fmt: skip
def test_a_rejection_at_a_terminal_offers_the_reasons_of_the_policy(
    cli: Perdure, monkeypatch: pytest.MonkeyPatch, typed: str, sent: dict[str, str] | None
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda _question: True)
    monkeypatch.setattr("typer.prompt", lambda _question, **_: typed)
    cli.will(reply({**APPROVAL, "reject_reasons": ["dou\x1bble", "not now"]}), reply(APPROVAL))
    ended = cli("approvals reject a-1")
    assert "dou\\u001bble" in ended.out and "not now" in ended.out
    assert ended.code == (1 if sent is None else 0)
    bodies = [asked.body for asked in cli.asked[1:]]
    assert bodies == ([] if sent is None else [{"decision": "reject", "digest": "d" * 64, "revision": 2, **sent}])


def test_arguments_that_a_reviewer_changed_are_shown_with_what_was_asked_for(cli: Perdure) -> None:
    before, after = {"order": "1042"}, {"order": "7"}
    revised = {**OPEN, "args": after, "pending_edit": {"by": "una", "args": after, "args_before": before}}
    edited = {**APPROVAL, "status": "edited", "args": before, "decision": {"type": "edit", "by": "una", "args": after}}
    cli.will(reply(revised), reply(edited))
    for _ in range(2):
        out = cli("approvals show a-1").out
        assert '    "order": "7"\n' in out and '  -  "order": "1042"\n' in out and '  +  "order": "7"\n' in out


_PAST, _NOT_YET = "2020-01-01T00:00:00Z", "2999-01-01 00:00:00 UTC"
_GONE = {"reviewer": "una", "at": _PAST, "fell_back_at": "2020-01-01T00:00:09Z"}
_FELL = {**OPEN, "votes": [], "assignee": "una"}
_OLD = {**APPROVAL, "outdated": "changed", "allowed_decisions": ["reject"]}
_SAYS = {**APPROVAL, "description": "in general", "says": "this call"}
_WAITS = {**APPROVAL, "status": "approved"}
_ANSWER = {**CHECKPOINT, "tool": "", "args": {}, "result": "What I would say\u001b[8m"}
_FAILED = {"at": "2026-11-21T10:00:00Z", "fault": "no answer \x1bwithin 8 s"}
_EDIT = {"type": "edit", "by": "una", "args": {"order": "7"}, "digest": "e" * 64}


@pytest.mark.parametrize(("approval", "shown", "hidden"), [
    (_SAYS, ["this call"], ["in general"]),
    ({**_SAYS, "says": ""}, ["in general"], []),
    ({**_FELL, "fallback": _GONE}, ["2020-01-01 00:00:09 UTC"], ["2020 ago"]),
    ({**_FELL, "fallback": {**_GONE, "fell_back_at": None}}, ["2020-01-01 00:00:00"], []),
    ({**_FELL, "assignee": "rita", "fallback": {"reviewer": "una", "at": _PAST}}, ["2020-01-01 00:00:00"], []),
    ({**_FELL, "assignee": None, "fallback": _GONE}, [], ["2020-01-01"]),
    ({**OPEN, "claimed_until": _PAST, "assignee": None}, [], [r"rita \("]),
    ({**_OLD, "status": "approved"}, ["changed"], ["approvals reject a-1"]),
    ({**_WAITS, "ready_at": "2999-01-01T00:00:00Z"}, [_NOT_YET, "withdraw a-1"], []),
    ({**_WAITS, "ready_at": _PAST}, [], ["withdraw a-1"]),
    (_ANSWER, [r"What I would say\\u001b\[8m"], ["{"]),
    ({**APPROVAL, "preview": _FAILED}, ["no answer"], ["\x1b"]),
    ({**APPROVAL, "preview": None}, [], ["no answer", "\x1b"]),
    ({**APPROVAL, "status": "done", "decision": _EDIT}, [r"(?s)\A((?!d{16}…).)*e{16}….*d{16}…"], []),
    (APPROVAL, ["turn:t", "approvals reject a-1"], ["\u202e", "\x1b"]),
])  # fmt: skip
def test_an_approval_is_shown_with_what_is_true_of_it_now(
    cli: Perdure, approval: dict[str, Any], shown: list[str], hidden: list[str]
) -> None:
    ended = cli("approvals show a-1", reply(approval))
    assert ended.code == 0
    assert [each for each in shown if not re.search(each, ended.out)] == []
    assert [each for each in hidden if re.search(each, ended.out)] == []


_REJECTED = {"decided_by": "rita", "decided_at": "2026-03-01T12:00:00Z", "decision": {"type": "reject", "by": "rita"}}
_BY_RITA = ("rita", "2026-03-01 12:00:00 UTC")
_WITHDRAWN = {"status": "withdrawn", "withdrawal": {"by": "ann", "at": "2026-11-21T10:00:00+00:00"}}
_BY_ANN = ("ann", "2026-11-21 10:00:00 UTC")


@pytest.mark.parametrize(("verb", "now", "code", "named"), [
    ("approve", {**_REJECTED, "status": "rejected"}, 5, (*_BY_RITA, "rejected")),
    ("approve", {**_REJECTED, "status": "done"}, 5, (*_BY_RITA, "done")),
    ("approve", {"status": "expired"}, 6, (_NOT_YET,)),
    ("withdraw", _WITHDRAWN, 5, _BY_ANN),
    ("withdraw", {**_WITHDRAWN, "decided_by": "una", "decision": {"type": "approve", "by": "una"}}, 5, _BY_ANN),
    ("withdraw", {"status": "expired"}, 6, (_NOT_YET,)),
    ("withdraw", {"status": "done"}, 5, ("done",)),
])  # fmt: skip
def test_a_settled_approval_is_neither_decided_nor_withdrawn(
    cli: Perdure, verb: str, now: dict[str, Any], code: int, named: tuple[str, ...]
) -> None:
    cli.will(reply({**APPROVAL, **now}))
    ended = cli("approvals", verb, "a-1")
    assert (ended.code, len(cli.asked)) == (code, 1)
    assert all(each in ended.err for each in named) and "una" not in ended.err


_CLAIMED = {
    "code": "claimed", "message": "rita looks at it until 2026-11-21 10:15:00 UTC",
    "details": {"claimed_by": "rita", "claimed_until": "2026-11-21T10:15:00Z"},
}  # fmt: skip


@pytest.mark.parametrize(("verb", "refused", "code", "named"), [
    ("withdraw", refusal(409, "already_decided", {"status": "withdrawn", "decision": {}}), 5, "already_decided"),
    ("approve", reply({"error": _CLAIMED}, 409), 1, "10:15:00"),
    ("approve", refusal(429, "too_many_decisions", Retry_After="17"), 1, "17 s"),
])  # fmt: skip
def test_another_users_change_is_printed_once(cli: Perdure, verb: str, refused: Reply, code: int, named: str) -> None:
    cli.will(reply(APPROVAL), refused)
    ended = cli("approvals", verb, "a-1")
    assert (ended.code, ended.err.count(named)) == (code, 1)
    assert verb != "withdraw" or len(ended.err.splitlines()) == 1, "nothing is said of a decision that was not made"


FIRST = {**APPROVAL, "risk": "low"}
SECOND = {**FIRST, "id": "a-2", "digest": "e" * 64, "args": {"order": "7"}}


def test_several_are_shown_and_decided_in_one_request_with_their_digests(cli: Perdure) -> None:
    answers = [{"id": "a-1", "status": "approved"}, {"id": "a-2", "status": "approved"}]
    cli.will(reply(FIRST), reply(SECOND), reply({"items": answers}))
    ended = cli("approvals batch approve a-1 a-2 a-1 --comment fine")
    assert ended.code == 0 and '"order": "1042"' in ended.out and '"order": "7"' in ended.out
    assert [line.split() for line in ended.out.splitlines()[-2:]] == [["a-1", "approved"], ["a-2", "approved"]]
    sent = [{"id": each["id"], "digest": each["digest"], "revision": 2} for each in (FIRST, SECOND)]
    assert cli.asked[2].path == "/v1/approvals/decisions"
    assert cli.asked[2].body["items"] == [{**each, "decision": "approve", "comment": "fine"} for each in sent]


@pytest.mark.parametrize(("codes", "exit_code"), [
    (["not_in_bulk"], 2),
    (["already_decided", "already_voted"], 5),
    (["approval_expired"], 6),
    (["claimed"], 1),
    (["already_decided", "approval_expired"], 1),
])  # fmt: skip
def test_a_bulk_decision_exits_with_its_failures_code(cli: Perdure, codes: list[str], exit_code: int) -> None:
    given = {"message": "no\x1b", "details": {}}
    statuses = {"not_in_bulk": 422, "approval_expired": 410}
    errors: list[Any] = [{"error": {**given, "code": code, "status": statuses.get(code, 409)}} for code in codes]
    both = zip(("a-1", "a-2"), [*errors, {"status": "rejected"}], strict=False)
    answers = [{"id": name, **each} for name, each in both]
    cli.will(reply(FIRST), reply(SECOND), reply({"items": answers}))
    ended = cli("approvals batch reject a-1 a-2 --reason double")
    assert ended.code == exit_code and codes[0] in ended.out and "\x1b" not in ended.out


@pytest.mark.parametrize(("words", "lists"), [("a-1 a-2 a-2", 0), ("--all-outdated", 2)])
def test_several_are_reissued_one_by_one_and_each_has_its_result(cli: Perdure, words: str, lists: int) -> None:
    pages = [reply({"items": [{**FIRST}], "next": "c"}), reply({"items": [{**SECOND}]})]
    cli.will(*pages[:lists], refusal(422, "args_invalid"), reply(SECOND, 201))
    ended = cli(f"approvals reissue {words} --yes")
    asked = [(each.method, each.path) for each in cli.asked[lists:]]
    assert asked == [("POST", f"/v1/approvals/{name}/reissue") for name in ("a-1", "a-2")]
    assert ended.code == 2 and "args_invalid" in ended.out
    assert ended.out.splitlines()[-1].split() == ["a-2", "reissued"]


def test_a_bulk_decision_leaves_out_requests_that_are_not_pending(cli: Perdure) -> None:
    gone = refusal(404, "approval_not_found")
    cli.will(reply({**FIRST, "status": "expired"}), gone, reply({**SECOND, "status": "rejected"}))
    ended = cli("approvals batch approve a-1 a-9 a-2 --json")
    assert ended.code == 1 and len(cli.asked) == 3
    codes = [each["error"]["code"] for each in ended.json["items"]]
    assert codes == ["approval_expired", "approval_not_found", "already_decided"]


EDITED = reply({**APPROVAL, "status": "edited"})
Edit = Callable[..., Ended]


@pytest.fixture
def edit(cli: Perdure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Edit:
    """Edits the approval; at each opening, the editor runs the next script on its file. The API answers `replies`."""

    def run(*scripts: str, replies: Sequence[Reply] = ()) -> Ended:
        program, count = tmp_path / "editor.py", tmp_path / "opened"
        count.mkdir()
        program.write_text(
            f"import sys, json, os, pathlib\npath = pathlib.Path(sys.argv[1])\nopened = pathlib.Path({str(count)!r})\n"
            "turn = len(list(opened.iterdir()))\n"
            "(opened / str(turn)).write_bytes(path.read_bytes())\n"
            f"exec({list(scripts)!r}[turn])\n"
        )
        monkeypatch.setenv("EDITOR", f"{sys.executable} {program}")
        return cli("approvals edit a-1", reply(APPROVAL), *replies)

    return run


def seen(folder: Path) -> list[str]:
    """What the editor was opened on, time after time."""
    return [(folder / "opened" / str(turn)).read_text() for turn in range(len(list((folder / "opened").iterdir())))]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person who says yes."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda _question: True)


def replaced(old: str, new: str) -> str:
    return f"text = path.read_text(); assert {old!r} in text; path.write_text(text.replace({old!r}, {new!r}))"


def test_an_edit_shows_the_difference_and_sends_the_new_arguments(edit: Edit, cli: Perdure, tmp_path: Path) -> None:
    script = (
        f"open({str(tmp_path / 'mode')!r}, 'w').write(oct(os.stat(path).st_mode))\n"
        "args = json.loads(path.read_text()); args['order'] = '7'; path.write_text(json.dumps(args))"
    )
    ended = edit(script, replies=[EDITED])
    assert ended.code == 0
    assert '-  "order": "1042",' in ended.out and '+  "order": "7",' in ended.out
    assert cli.asked[1].body["args"] == {**APPROVAL["args"], "order": "7"}
    assert stat.S_IMODE(int((tmp_path / "mode").read_text(), 8)) == 0o600


@pytest.mark.parametrize("script", [
    "pass", "path.write_text('{')", "path.write_text('[1]')", "sys.exit(1)", "path.unlink()",
    "path.write_text('{}')", "path.write_bytes(b'\\xff')", replaced('"1042"', "1042"),
])  # fmt: skip
def test_an_edit_that_changed_nothing_or_broke_it_sends_nothing(edit: Edit, cli: Perdure, script: str) -> None:
    assert (edit(script).code, len(cli.asked)) == (2, 1)


@pytest.mark.parametrize("has_folder", [True, False])
def test_if_no_temporary_file_can_be_written_nothing_is_sent(
    cli: Perdure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_folder: bool
) -> None:
    monkeypatch.setenv("EDITOR", f"touch {tmp_path / 'opened'}")
    cli.will(reply(APPROVAL))
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    if has_folder:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, most[1]))  # a write fails then, as on a full disk
    else:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    try:
        ended = cli("approvals edit a-1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert (ended.code, len(cli.asked), (tmp_path / "opened").exists()) == (1, 1, False)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_without_an_editor_or_a_terminal_nothing_is_sent(
    cli: Perdure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    if is_terminal:
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        monkeypatch.setattr("shutil.which", lambda _name: "/bin/false")  # nano or vi, which would wait for ever
    monkeypatch.setattr("sys.stdin.isatty", lambda: is_terminal)
    ended = cli("approvals edit a-1", reply(APPROVAL))
    assert (ended.code, len(cli.asked)) == (2, 1)
    assert "EDITOR" in ended.err and "--args" in ended.err


def test_an_editor_that_does_not_start_sends_nothing(cli: Perdure, monkeypatch: pytest.MonkeyPatch) -> None:
    for count, program in enumerate(("/nowhere/at/all", "'"), 1):
        monkeypatch.setenv("EDITOR", program)
        assert (cli("approvals edit a-1", reply(APPROVAL)).code, len(cli.asked)) == (2, count)


@pytest.mark.usefixtures("terminal")
def test_the_editor_shows_the_schema_and_no_unseen_character(edit: Edit, cli: Perdure, tmp_path: Path) -> None:
    assert edit(replaced('"1042"', '"7"'), replies=[EDITED]).code == 0
    (opened,) = seen(tmp_path)
    above = opened.partition("{")[0]
    assert all(each in above for each in ("refund", "a-1", "order", "Its number.", "reason"))
    assert all(line.startswith("//") for line in above.splitlines())
    assert not set(opened) & {"\u202e", "\x1b"}
    assert cli.asked[1].body["args"] == {**APPROVAL["args"], "order": "7"}


@pytest.mark.usefixtures("terminal")
def test_arguments_that_do_not_fit_are_opened_again_below_the_fault(edit: Edit, cli: Perdure, tmp_path: Path) -> None:
    ended = edit(*(replaced('"1042"', "7"), replaced("7", '"7",,'), replaced(",,", "")), replies=[EDITED])
    first, second, third = seen(tmp_path)
    assert second.count("//") > first.count("//")
    assert '"order": 7' in second and second.endswith(first.partition("{")[2].replace('"1042"', "7"))
    assert '"order": "7",,' in third and third.count("//") == second.count("//")
    assert ended.code == 0 and cli.asked[1].body["args"]["order"] == "7"


@pytest.mark.usefixtures("terminal")
def test_closing_the_editor_unchanged_after_a_fault_sends_nothing(edit: Edit, cli: Perdure, tmp_path: Path) -> None:
    assert (edit("path.write_text('{')", "pass").code, len(cli.asked), len(seen(tmp_path))) == (2, 1, 2)


@pytest.mark.usefixtures("terminal")
def test_arguments_that_the_api_rejects_are_opened_again(edit: Edit, cli: Perdure, tmp_path: Path) -> None:
    error: dict[str, Any] = {"code": "args_invalid", "message": "order 7 is not one of yours", "details": {}}
    replies = [reply({"error": error}, 422), EDITED]
    assert edit(replaced('"1042"', '"7"'), replaced('"7"', '"8"'), replies=replies).code == 0
    assert error["message"] in seen(tmp_path)[1]
    assert [asked.body["args"]["order"] for asked in cli.asked[1:]] == ["7", "8"]


@pytest.mark.usefixtures("terminal")
def test_a_request_decided_meanwhile_is_not_opened_again(edit: Edit, tmp_path: Path) -> None:
    decided = refusal(409, "already_decided", {"decision": {"type": "reject", "by": "rita"}})
    assert (edit(replaced('"1042"', '"7"'), replies=[decided]).code, len(seen(tmp_path))) == (5, 1)


@pytest.mark.parametrize(("args", "code"), [
    ('{"b": 0, "n": 1}', 2), ('{"n": true, "b": 0}', 0), ('{"n": 1.0, "b": 0}', 0), ('{"n": [1], "b": 0}', 0),
])  # fmt: skip
def test_unchanged_arguments_on_the_command_line_are_not_sent(cli: Perdure, args: str, code: int) -> None:
    ended = cli("approvals", "edit", "a-1", "--args", args, reply({**APPROVAL, "args": {"n": 1, "b": 0}}), EDITED)
    assert ended.code == code
    assert [str(asked.body["args"]) for asked in cli.asked[1:]] == ([] if code else [str(json.loads(args))])


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '{"a": NaN}', "[]", "", '{"a": 1} x', "{" * 100_000])
def test_anything_but_one_json_object_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentText):
        parse_object(text)
    with pytest.raises(InvalidArgumentText, match='"b": two'):  # a fault names the line in which it is
        parse_object('{\n"a": 1,\n"b": two\n}')


def test_a_value_that_looks_like_a_comment_is_kept() -> None:
    text = '// said\n{\n  "a": "// not one",\n  // said too\n  "b": "x\u2028// y"\n}\n'
    assert json.loads(without_comments(text)) == {"a": "// not one", "b": "x\u2028// y"}


def test_a_check_counts_the_approvals_of_the_first_version_rule_and_waits_for_its_limit(
    cli: Perdure, tmp_path: Path
) -> None:
    scaffold(tmp_path / "app")
    (app,) = find_apps([tmp_path / "app"])
    (agent,) = published_from_locks(app)
    card = next(card for card in agent.cards if card.needs_approval)
    digest = agent.definition.approvals.digest
    approval = {**APPROVAL, "agent": agent.definition.id, "tool": card.name, "tool_version": card.version_1}
    tool = {"name": card.name, "version": "older", "version_rule": 2, "version_1": card.version_1}
    refused, empty = refusal(429, "too_many_requests", Retry_After="0"), reply({"items": [], "next": None})
    pending = reply({"items": [approval | {"policy_digest": digest}], "next": None})
    ended = cli(
        f"check {tmp_path / 'app'} --json", refused, pending, reply({"items": [tool], "next": None}), empty, empty
    )
    assert (ended.code, ended.json["outdated"]) == (0, {card.name: 1}), ended.err
    assert [each.query["kind"] for each in cli.asked if each.query.get("status") == ["approved"]] == [["approval"]]
