"""Apps as they are checked before they are published: the sandbox's type checker has a word in it."""

from pathlib import Path

import pytest

from perdure.activities.sandbox import Limits, SandboxConfig, SandboxUnavailable
from perdure.activities.toolbox.engine_tools import CORE_BY_NAME
from perdure.apps import publish
from perdure.apps.registry import block_digests, one_app, several_apps
from tests.unit.apps.problems import told
from tests.unit.apps.skill_app import STEEP, STEEP_CARD, write_app

BLOCK = "skills/tea/blocks/steep.py"
WRONG = STEEP.replace("else 3", "else leaf / 2")
OTHER = "id: other\ntitle: Other\ntopology: skill_pipeline\nskills: [water]\n"
AT_6 = f"{BLOCK}:6: "


async def test_a_good_block_is_taken(tmp_path: Path) -> None:
    found = await one_app(write_app(tmp_path), SandboxConfig())
    assert (told(found.apps[0]), found.unchecked) == ([], "")


async def test_a_block_that_does_not_type_check_is_refused_at_its_line_and_the_rest_is_loaded(tmp_path: Path) -> None:
    found = await one_app(write_app(tmp_path, {BLOCK: WRONG, "agents/other.yaml": OTHER}), SandboxConfig())
    (app,) = found.apps
    assert told(app)[0].startswith(AT_6), told(app)
    assert [agent.id for agent in app.agents] == ["other"] and set(app.skills) == {"water"}


async def test_a_block_that_does_not_fit_its_own_schemas_is_refused(tmp_path: Path) -> None:
    narrow = STEEP.replace("leaf: str", "leaf: int")
    (app,) = (await one_app(write_app(tmp_path, {BLOCK: narrow}), SandboxConfig())).apps
    assert told(app)[0].startswith(f"{BLOCK}:4: "), told(app)


async def test_a_block_that_was_published_is_not_checked_again(tmp_path: Path) -> None:
    folder = write_app(tmp_path, {BLOCK: WRONG})
    sandbox = SandboxConfig()
    found = await several_apps([folder], sandbox)
    app = found.apps[-1]
    assert app.name == "parlour" and app.agents == ()
    unchecked = (await one_app(folder, SandboxConfig(program=tmp_path / "nothing"))).apps[0]
    published = publish(unchecked, [tool.card for tool in CORE_BY_NAME.values()])
    again = await several_apps([folder], sandbox, block_digests(published))
    assert [agent.id for agent in again.apps[-1].agents] == ["host"]


async def test_where_no_sandbox_can_be_had_apps_are_loaded_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def none(config: SandboxConfig) -> None:
        raise SandboxUnavailable("bwrap is not installed")

    monkeypatch.setattr("perdure.apps.registry.open_for_checks", none)
    found = await one_app(write_app(tmp_path, {BLOCK: WRONG}), SandboxConfig())
    assert found.unchecked == "bwrap is not installed"
    assert [agent.id for agent in found.apps[0].agents] == ["host"]
    found = await one_app(write_app(tmp_path, {BLOCK: "x = 1\n"}), SandboxConfig())
    assert found.apps[0].agents == () and told(found.apps[0])[0].startswith(f"{BLOCK}:1: ")


CARD = "skills/tea/blocks/steep.yaml"
EXAMPLES = f"""{STEEP_CARD}examples:
  - input: {{leaf: green}}
    output: {{minutes: MINUTES}}
  - input: {{leaf: grey}}
"""
BRIEF = SandboxConfig(ceiling=Limits(wall_seconds=0.5))


async def test_examples_are_run_where_that_is_asked_for_and_their_results_compared(tmp_path: Path) -> None:
    good = write_app(tmp_path / "good", {CARD: EXAMPLES.replace("MINUTES", "2")})
    assert told((await one_app(good, SandboxConfig(), examples=True)).apps[0]) == []
    bad = write_app(tmp_path / "bad", {CARD: EXAMPLES.replace("MINUTES", "4")})
    assert told((await one_app(bad, SandboxConfig())).apps[0]) == [], "a worker does not run them"
    (app,) = (await one_app(bad, SandboxConfig(), examples=True)).apps
    assert told(app)[0].startswith(f"{CARD}:17: ")
    assert app.agents == () and set(app.skills) == {"water"}


async def test_an_example_that_fails_or_never_ends_is_told_with_its_line_and_that_of_the_block(tmp_path: Path) -> None:
    loop = STEEP.replace("    return", "    while leaf == 'grey':\n        pass\n    return")
    files = {CARD: EXAMPLES.replace("MINUTES", "2"), BLOCK: loop}
    (app,) = (await one_app(write_app(tmp_path / "loop", {**files}), BRIEF, examples=True)).apps
    assert told(app)[0].startswith(f"{CARD}:18: "), told(app)
    raising = STEEP.replace("    return", "    if leaf == 'grey':\n        raise ValueError(leaf)\n    return")
    files = {CARD: EXAMPLES.replace("MINUTES", "2"), BLOCK: raising}
    (app,) = (await one_app(write_app(tmp_path / "raising", {**files}), BRIEF, examples=True)).apps
    assert told(app)[0].startswith(f"{CARD}:18: ") and "ValueError: grey (steep.py:7)" in told(app)[0]


@pytest.mark.parametrize(
    ("top", "line"),
    [
        ("while True:\n    pass", 4),
        ("ALL = [x for x in iter(int, 1)]", 4),
        ("HALF = 1 / 0", 4),
        ("def grow(n: int) -> int:\n    return grow(n)\n\n\nN = grow(1)", 5),
    ],
)
async def test_a_top_that_never_ends_or_fails_is_told_with_its_line(tmp_path: Path, top: str, line: int) -> None:
    folder = write_app(tmp_path, {BLOCK: STEEP.replace("def run(", f"{top}\n\n\ndef run(", 1)})
    (app,) = (await one_app(folder, BRIEF, examples=True)).apps
    assert told(app)[0].startswith(f"{BLOCK}:{line}: "), told(app)
