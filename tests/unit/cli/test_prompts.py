"""`perdure prompts`: what is promoted is the text that was shown, and a draft is what the editor left."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.apps.api_double import ApiDouble, said
from tests.unit.cli.conftest import Perdure

VERSION: dict[str, Any] = {
    "id": "v-1",
    "template": "voice",
    "stage": "draft",
    "author": "requester",
    "digest": "d" * 64,
    "characters": 10,
    "changed_at": "2026-11-21T10:00:00Z",
    "text": "Be \x1b[8mkind.",
}
MISSING = said({"error": {"code": "prompt_template_not_found", "message": "no", "details": {}}}, 404)


def test_the_list_names_stage_and_author_and_asks_for_what_was_asked(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said({"items": [VERSION], "next": "c"}))
    ended = perdure("prompts", "list", "--template", "voice", "--stage", "draft")
    assert ended.code == 0 and "v-1" in ended.out and "requester" in ended.out and "--cursor c" in ended.out
    assert stack.asked[0].query == {"template": ["voice"], "stage": ["draft"], "limit": ["50"]}


@pytest.mark.parametrize(
    ("words", "path"), [((), "/v1/prompt-templates/voice"), (("--rendered",), "/v1/prompt-templates/voice/render")]
)
def test_a_text_is_shown_without_what_a_terminal_would_obey(
    perdure: Perdure, stack: ApiDouble, words: tuple[str, ...], path: str
) -> None:
    stack.will(said(VERSION))
    ended = perdure("prompts", "show", "voice", *words)
    assert ended.code == 0 and "kind." in ended.out and "\x1b" not in ended.out
    assert stack.asked[0].path == path


@pytest.mark.parametrize(("stage", "to"), [("draft", "pre_production"), ("pre_production", "active")])
def test_promoting_shows_the_text_and_sends_the_digest_of_what_was_shown(
    perdure: Perdure, stack: ApiDouble, stage: str, to: str
) -> None:
    stack.will(said({**VERSION, "stage": stage}), said({**VERSION, "stage": to}))
    ended = perdure("prompts", "promote", "v-1")
    assert ended.code == 0 and "kind." in ended.out and to in ended.out
    assert stack.asked[1].body == {"to": to, "digest": "d" * 64}


@pytest.mark.parametrize("stage", ["active", "archived"])
def test_what_cannot_move_on_is_not_even_asked_about(perdure: Perdure, stack: ApiDouble, stage: str) -> None:
    stack.will(said({**VERSION, "stage": stage}))
    assert perdure("prompts", "promote", "v-1").code == 1
    assert len(stack.asked) == 1


def test_a_draft_is_saved_from_a_file(perdure: Perdure, stack: ApiDouble, tmp_path: Path) -> None:
    (tmp_path / "voice.md").write_text("Be brief.\n")
    stack.will(said(VERSION))
    ended = perdure("prompts", "edit", "voice", "--file", str(tmp_path / "voice.md"))
    assert ended.code == 0
    sent = stack.asked[0]
    assert (sent.method, sent.path, sent.body) == ("PUT", "/v1/prompt-templates/voice/draft", {"text": "Be brief.\n"})


def test_the_editor_opens_on_what_speaks_now_and_its_text_is_saved(
    perdure: Perdure, stack: ApiDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "editor.py"
    script.write_text("import sys\np = sys.argv[1]\nt = open(p).read()\nopen(p, 'w').write(t + ' Be brief.')\n")
    monkeypatch.setenv("EDITOR", f"{sys.executable} {script}")
    stack.will(said({**VERSION, "text": "Be kind."}), said(VERSION))
    assert perdure("prompts", "edit", "voice").code == 0
    assert stack.asked[1].body == {"text": "Be kind. Be brief."}


def test_a_template_that_is_not_there_yet_begins_empty_and_an_empty_text_is_not_saved(
    perdure: Perdure, stack: ApiDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDITOR", "true")
    stack.will(MISSING)
    ended = perdure("prompts", "edit", "voice")
    assert (ended.code, len(stack.asked)) == (2, 1)


def test_a_file_that_is_not_there_is_a_usage_error(perdure: Perdure, stack: ApiDouble) -> None:
    assert perdure("prompts", "edit", "voice", "--file", "/nowhere/at/all").code == 2
    assert stack.asked == []


def test_archiving_needs_no_text(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said({**VERSION, "stage": "archived"}))
    ended = perdure("prompts", "archive", "v-1")
    assert ended.code == 0 and "archived" in ended.out
    assert (stack.asked[0].method, stack.asked[0].path) == ("POST", "/v1/prompt-versions/v-1/archive")
