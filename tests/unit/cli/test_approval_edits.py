"""`approvals edit`: the arguments in an editor, until they fit."""

import json
import resource
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from perdure.cli.approvals.decide import without_comments
from perdure.core.calls.arguments import InvalidArgumentText, parse_object
from tests.unit.apps.api_double import Reply, reply
from tests.unit.cli.conftest import APPROVAL, Ended, Perdure, refusal

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
