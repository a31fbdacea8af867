"""`perdure prompts`: what is promoted is the text that was shown, and a draft is what the editor left."""

import sys
from pathlib import Path

import pytest

from tests.unit.apps.api_double import ApiDouble, said
from tests.unit.cli.conftest import Perdure
from tests.unit.cli.test_outputs import VERSION

MISSING = said({"error": {"code": "prompt_template_not_found", "message": "no", "details": {}}}, 404)


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
