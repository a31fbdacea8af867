"""The checks of apps before they are published, with the sandbox's type checker. Mistakes have their place."""

import asyncio
from pathlib import Path

import pytest

from perdure.__main__ import run
from perdure.activities.sandbox import Limits, SandboxConfig, SandboxUnavailable
from perdure.activities.toolbox.engine_tools import CORE_BY_NAME
from perdure.apps import publish
from perdure.apps.bootstrap import bootstrap
from perdure.apps.registry import block_digests, load_apps, load_one_app
from perdure.settings import Settings
from tests.conftest import Urls, as_owner
from tests.unit.apps.skill_app import SKILL, STEEP, STEEP_CARD, problems_of, write_app

TEA = "skills/tea/SKILL.md"
BLOCK = "skills/tea/blocks/steep.py"
CARD = "skills/tea/blocks/steep.yaml"
WRONG = STEEP.replace("else 3", "else leaf / 2")
LOOP = STEEP.replace("    return", "    while leaf == 'grey':\n        pass\n    return")
RAISING = STEEP.replace("    return", "    if leaf == 'grey':\n        raise ValueError(leaf)\n    return")
EXAMPLES = f"""{STEEP_CARD}examples:
  - input: {{leaf: green}}
    output: {{minutes: 2}}
  - input: {{leaf: grey}}
"""
OTHERWISE = EXAMPLES.replace("minutes: 2}", "minutes: 4}")
OTHER = {"agents/other.yaml": "id: other\ntitle: Other\ntopology: skill_pipeline\nskills: [water]\n"}
BRIEF = SandboxConfig(ceiling=Limits(wall_seconds=0.5))


def block_with_top(top: str) -> dict[str, str]:
    """The block, with this before its `run`."""
    return {BLOCK: STEEP.replace("def run(", f"{top}\n\n\ndef run(", 1)}


@pytest.mark.parametrize(("files", "examples", "place"), [
    ({}, False, ""),
    ({BLOCK: WRONG}, False, f"{BLOCK}:6: "),
    ({BLOCK: STEEP.replace("leaf: str", "leaf: int")}, False, f"{BLOCK}:4: "),
    ({CARD: EXAMPLES}, True, ""),
    ({CARD: OTHERWISE}, False, ""),  # a worker does not run examples
    ({CARD: OTHERWISE}, True, f"{CARD}:17: "),
    ({CARD: EXAMPLES, BLOCK: LOOP}, True, f"{CARD}:18: "),
    ({CARD: EXAMPLES, BLOCK: RAISING}, True, f"{CARD}:18: "),
    (block_with_top("while True:\n    pass"), True, f"{BLOCK}:4: "),
    (block_with_top("ALL = [x for x in iter(int, 1)]"), True, f"{BLOCK}:4: "),
    (block_with_top("HALF = 1 / 0"), True, f"{BLOCK}:4: "),
    (block_with_top("def grow(n: int) -> int:\n    return grow(n)\n\n\nN = grow(1)"), True, f"{BLOCK}:5: "),
])  # fmt: skip
async def test_a_bad_block_names_its_line(tmp_path: Path, files: dict[str, str], examples: bool, place: str) -> None:
    found = await load_one_app(write_app(tmp_path, {**files, **OTHER}), BRIEF, examples=examples)
    (app,) = found.apps
    assert problems_of(app)[0].startswith(place) if place else problems_of(app) == [], problems_of(app)
    assert {agent.id for agent in app.agents} == ({"other"} if place else {"host", "other"})
    assert set(app.skills) == ({"water"} if place else {"tea", "water"}) and found.unchecked == ""


async def test_a_block_that_was_published_is_not_checked_again(tmp_path: Path) -> None:
    folder = write_app(tmp_path, {BLOCK: WRONG})
    sandbox = SandboxConfig()
    app = (await load_apps([folder], sandbox)).apps[-1]
    assert app.name == "parlour" and app.agents == ()
    unchecked = (await load_one_app(folder, SandboxConfig(program=tmp_path / "nothing"))).apps[0]
    published = publish(unchecked, [tool.card for tool in CORE_BY_NAME.values()])
    again = await load_apps([folder], sandbox, block_digests(published))
    assert [agent.id for agent in again.apps[-1].agents] == ["host"]


async def test_without_a_sandbox_apps_load_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(config: SandboxConfig) -> None:
        raise SandboxUnavailable("bwrap is not installed")

    monkeypatch.setattr("perdure.apps.registry.open_for_checks", none)
    found = await load_one_app(write_app(tmp_path, {BLOCK: WRONG}), SandboxConfig())
    assert found.unchecked == "bwrap is not installed"
    assert [agent.id for agent in found.apps[0].agents] == ["host"]
    found = await load_one_app(write_app(tmp_path, {BLOCK: "x = 1\n"}), SandboxConfig())
    assert found.apps[0].agents == () and problems_of(found.apps[0])[0].startswith(f"{BLOCK}:1: ")


@pytest.mark.parametrize(
    ("files", "place"),
    [({TEA: SKILL.replace("    do:", "    doo: 1\n    do:")}, f"{TEA}:18: "), ({BLOCK: WRONG}, f"{BLOCK}:6: ")],
)
async def test_skills_check_and_a_start_name_the_place_and_the_start_publishes_the_rest(
    files: dict[str, str],
    place: str,
    tmp_path: Path,
    urls: Urls,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = write_app(tmp_path / "app", {**files, **OTHER})
    given = {"DATABASE_OWNER_URL": urls.owner, "PERDURE_APP": str(folder), "PERDURE_EXAMPLES": "true"}
    await bootstrap(Settings(_env_file=None, **given))  # type: ignore[arg-type]
    assert f"\n{folder}/{place}" in "\n" + capsys.readouterr().err
    async with as_owner(urls.owner, "*") as owner:
        published = {row["agent_id"] for row in await owner.fetch("SELECT agent_id FROM agents")}
    assert {"other", "refunds"} <= published and "host" not in published
    monkeypatch.chdir(folder)
    assert await asyncio.to_thread(run, ["skills", "check", "."]) == 1
    assert f"\n{place}" in "\n" + capsys.readouterr().out
