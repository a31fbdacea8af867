"""What an author may get wrong, at the doors that authors use: the place is named, and everything else is loaded."""

from pathlib import Path

import asyncpg
import pytest

from perdure.__main__ import run
from perdure.apps.bootstrap import bootstrap
from perdure.settings import Settings
from perdure.store.database import set_up
from tests.conftest import Urls
from tests.unit.apps.skill_app import SKILL, STEEP, STEEP_CARD, WATER, write_app

OTHER = "id: other\ntitle: Other\ntopology: skill_pipeline\n"
TEA = "skills/tea/SKILL.md"
Mistake = tuple[dict[str, str], str]
BAD: dict[str, Mistake] = {
    "a block that shadows a registered name": (
        {"skills/tea/blocks/entity_resolve.py": STEEP, "skills/tea/blocks/entity_resolve.yaml": STEEP_CARD},
        "skills/tea/blocks/entity_resolve.py:1: ",
    ),
    "a cycle of dependencies": (
        {"skills/water/SKILL.md": WATER.replace("persona: plumber", "dependencies: [tea]")},
        f"{TEA}:8: ",
    ),
    "an unknown field of a rule": ({TEA: SKILL.replace("    do:", "    doo: 1\n    do:")}, f"{TEA}:18: "),
    "an unknown condition of a rule": ({TEA: SKILL.replace("tool: steep", "tols: steep")}, f"{TEA}:16: "),
    "a block that does not type-check": (
        {"skills/tea/blocks/steep.py": STEEP.replace("else 3", "else leaf / 2")},
        "skills/tea/blocks/steep.py:6: ",
    ),
    "a template with an unknown variable": (
        {"skills/tea/templates/facts.md": "Hello\n{{user_nam}}\n"},
        "skills/tea/templates/facts.md:2: ",
    ),
}


def app(folder: Path, mistake: Mistake) -> Path:
    """The app with this mistake, and an agent that it does not touch."""
    return write_app(folder, {"agents/other.yaml": OTHER, **mistake[0]})


@pytest.mark.parametrize("mistake", BAD.values(), ids=BAD.keys())
def test_skills_check_names_the_place(
    mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(app(tmp_path / "app", mistake))
    assert run(["skills", "check", "."]) == 1
    told = capsys.readouterr().out.splitlines()
    assert any(line.startswith(mistake[1]) for line in told), told


FIRST, *OTHERS = BAD.values()


@pytest.mark.parametrize("mistake", [FIRST, *(pytest.param(each, marks=pytest.mark.soak) for each in OTHERS)])
async def test_a_start_names_the_place_and_publishes_the_rest(
    mistake: Mistake, tmp_path: Path, urls: Urls, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = app(tmp_path / "app", mistake)
    given = {"DATABASE_OWNER_URL": urls.owner, "PERDURE_APP": str(folder), "PERDURE_EXAMPLES": "true"}
    await bootstrap(Settings(_env_file=None, **given))  # type: ignore[arg-type]
    told = capsys.readouterr().err.splitlines()
    assert any(line.startswith(f"{folder}/{mistake[1]}") for line in told), told
    owner = await asyncpg.connect(urls.owner, server_settings={"search_path": "perdure"})
    try:
        await set_up(owner)
        async with owner.transaction():
            await owner.execute("SELECT set_config('perdure.tenant', '*', true)")
            found = await owner.fetch("SELECT agent_id FROM agents")
    finally:
        await owner.close()
    assert {"other", "refunds"} <= {row["agent_id"] for row in found} and "host" not in {
        row["agent_id"] for row in found
    }
