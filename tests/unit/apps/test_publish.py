"""perdure/apps/publish.py: which cards an agent gets, and when its version changes."""

import os
from pathlib import Path

import pytest

from perdure import apps
from perdure.activities.toolbox.engine_tools import CORE_ALWAYS, ENGINE_TOOLS
from perdure.contracts.agents import AgentDefinition, PublishedAgent
from perdure.contracts.errors import InvariantBroken
from perdure.contracts.values import digest_of
from perdure.core.agents.plans import MAX_PLAN_BYTES
from perdure.local.config import ROOT, StackConfig, shipped_apps
from perdure.local.data_dir import StackError, open_home
from perdure.local.programs import environment, read_all_app_services
from perdure.sdk.tools import tool
from perdure.settings import Settings
from tests.unit.apps.problems import problems_of
from tests.unit.apps.skill_app import FILES, STEEP, STEEP_CARD, write_app
from tests.unit.apps.tool_contexts import card

CORE = [card(name=name) for name in ("entity_resolve", "context_assemble", "create_entity")]


@tool(effect="read")
async def look(name: str) -> str:
    """Look."""
    return name


@tool(effect="opaque")
async def touch(name: str) -> str:
    """Touch."""
    return name


def app(**fields: object) -> apps.App:
    agent = AgentDefinition.model_validate({"id": "a", "title": "A", "topology": "t", **fields})
    return apps.App("app", "App", Path("nowhere"), (agent,), {"look": look, "touch": touch})


@pytest.mark.parametrize(("fields", "offered"), [
    # core tools come first and none twice; one that changes something only where it is named
    ({"tools": ("touch", "entity_resolve", "look", "touch")}, [*apps.ALWAYS_OFFERED, "touch", "look"]),
    ({}, [*apps.ALWAYS_OFFERED]),
    ({"tools": ("create_entity",)}, [*apps.ALWAYS_OFFERED, "create_entity"]),
    ({"core_tools": False}, []),
    ({"core_tools": False, "tools": ("context_assemble",)}, ["context_assemble"]),
])  # fmt: skip
def test_an_agent_is_offered_core_tools_and_its_own(fields: dict[str, object], offered: list[str]) -> None:
    (published,) = apps.publish(app(**fields), CORE)
    assert [card.name for card in published.cards] == offered
    assert apps.publish(app(**fields), CORE[::-1]) == [published], "however the core cards are ordered"


def test_the_reserved_names_are_those_of_the_core_tools() -> None:
    assert set(apps.Engine().core_tools) == set(ENGINE_TOOLS)
    assert [tool.card.name for tool in CORE_ALWAYS] == list(apps.ALWAYS_OFFERED)


def test_the_version_depends_on_the_definition_and_the_tools_alone() -> None:
    newer = [CORE[0].model_copy(update={"version": "2"}), *CORE[1:]]
    changes: list[dict[str, object]] = [{}, {"title": "B"}, {"tools": ("look", "touch")}, {"script": {"rules": []}}]
    made = [apps.publish(app(**{"tools": ("look",), **change}), CORE) for change in changes]
    made.append(apps.publish(app(tools=("look",)), newer))
    assert len({each.version for (each,) in made}) == len(made)
    assert apps.publish(app(tools=("look",)), CORE) == made[0]


def test_an_agent_with_an_unknown_initial_toolset_is_left_out() -> None:
    core = [*CORE, card(name="memory_patch", toolset="memory")]
    right = app(tools=("memory_patch",), toolsets={"memory": False})
    assert len(apps.publish(right, core)) == 1 and apps.skipped_agents(right, core, {}) == []
    wrong = app(tools=("memory_patch",), toolsets={"memry": False})
    assert apps.publish(wrong, core) == []
    (line,) = apps.skipped_agents(wrong, core, {})
    assert "memry" in line and "'memory'" in line


@pytest.mark.parametrize(("tools", "fits"), [(450, True), (600, False)])
def test_an_agent_whose_plan_would_fill_its_pauses_is_left_out(tools: int, fits: bool) -> None:
    names = tuple(f"{'long_' * 12}{number:03}" for number in range(tools))
    many, core = app(tools=names), [card(name=name) for name in names]
    assert (len(apps.publish(many, core)) == 1) is fits
    assert [f"{MAX_PLAN_BYTES:,}" in line for line in apps.skipped_agents(many, core, {})] == [True] * (not fits)


def test_an_unknown_tool_at_publication_is_an_internal_error() -> None:
    with pytest.raises(InvariantBroken, match="nothing_at_all"):
        apps.publish(app(tools=("nothing_at_all",)), CORE)


def test_blocks_offered_to_a_model_come_last(tmp_path: Path) -> None:
    hidden = {
        "skills/water/blocks/boil.py": STEEP,
        "skills/water/blocks/boil.yaml": STEEP_CARD.replace("true", "false").replace("leaves", "kettles"),
        "data/kettles.json": '{"_about": "Made up too."}',
        "data/unused.json": '{"_about": "Made up as well."}',
    }
    loaded = apps.load_app(write_app(tmp_path, {**hidden}))
    assert problems_of(loaded) == []
    (published,) = apps.publish(loaded, CORE)
    assert [card.name for card in published.cards] == ["entity_resolve", "context_assemble", "steep"]
    steep = published.cards[-1]
    assert (steep.effect.value, steep.needs_approval, steep.capability) == ("read", False, "tea.steep")
    assert steep.description == "How long a leaf steeps." and steep.parameters["required"] == ["leaf"]
    assert published.rules == loaded.rules and [rule.id for rule in published.rules] == ["parlour:no_batches"]
    assert set(published.tables) == {"kettles", "leaves"}
    assert {table.name for table in apps.tables_of(loaded, [published])} == {"kettles", "leaves"}
    for table in apps.tables_of(loaded, [published]):
        assert table.digest == published.tables[table.name] == digest_of(table.body)
    assert "Made up" not in published.model_dump_json()


@pytest.mark.parametrize(("path", "old", "new", "card_too"), [
    ("skills/tea/blocks/steep.py", "else 3", "else 4", True),
    ("skills/tea/blocks/steep.yaml", "steeps", "rests", True),
    ("data/leaves.json", "Made", "Thought", True),
    ("skills/tea/SKILL.md", "One", "Two", False),
    ("skills/tea/templates/facts.md", "bush", "tree", False),
    ("skills/tea/artifacts/leaves.md", "Green", "Red", False),
    ("skills/water/SKILL.md", "Heats", "Boils", False),
    ("rules/house.yaml", "abort", "require_hitl", False),
    ("personas/host.md", "house", "shop", False),
])  # fmt: skip
def test_a_change_anywhere_makes_a_new_version(tmp_path: Path, path: str, old: str, new: str, card_too: bool) -> None:
    (before,) = apps.publish(apps.load_app(write_app(tmp_path)), CORE)
    assert old in FILES[path]
    (after,) = apps.publish(apps.load_app(write_app(tmp_path, {path: FILES[path].replace(old, new)})), CORE)
    assert after.version != before.version
    assert (after.cards[-1].version != before.cards[-1].version) is card_too
    assert apps.publish(apps.load_app(write_app(tmp_path)), CORE) == [before]
    assert PublishedAgent.model_validate(before.model_dump(mode="json")) == before


def test_an_agent_without_skill_folders_keeps_its_stored_form() -> None:
    skills = [{"id": "own", "name": "Own", "description": "Mine.", "body": "Do."}]
    (published,) = apps.publish(app(tools=("look",), skills=skills), CORE)
    stored = published.model_dump(mode="json")
    assert set(stored) == {"definition", "cards", "version"}
    fields = "id title topology model model_params persona core_tools tools skills limits window approvals script"
    assert set(stored["definition"]) == set(fields.split())
    assert stored["definition"]["skills"] == skills
    assert stored["version"] == digest_of({"definition": stored["definition"], "cards": stored["cards"]})


SIX = tuple(apps.SHIPPED / name for name in ("care", "charts", "filings", "ops", "refunds", "skeleton"))
MINE, OTHER = "mine", "other"
Asked = tuple[str, str, tuple[str | Path, ...], bool | None, tuple[str | Path, ...]]


def in_process(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in ("PERDURE_APP", "PERDURE_EXAMPLES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return Settings(_env_file=None)


@pytest.mark.parametrize("asked", [
    # PERDURE_APP, PERDURE_EXAMPLES, --app, --examples, the apps
    ("", "", (), None, ()),
    ("", "false", (), None, ()),
    ("", "true", (), None, SIX),
    ("", "1", (), False, ()),
    ("", "", (), True, SIX),
    ("", "off", (), True, SIX),
    (MINE, "", (), None, (MINE,)),
    ("", "", (MINE,), None, (MINE,)),
    (MINE, "", (OTHER,), None, (OTHER,)),
    (MINE, "true", (OTHER,), None, (*SIX, OTHER)),
    (MINE, "", (MINE,), None, (MINE,)),
    (f"{OTHER}{os.pathsep}{MINE}", "yes", (), None, (*SIX, OTHER, MINE)),
    ("", "", (MINE,), True, (*SIX, MINE)),
    ("", "", (apps.SHIPPED / "refunds",), None, (apps.SHIPPED / "refunds",)),
    ("", "", (apps.SHIPPED / "refunds", MINE), True, (*SIX, MINE)),
])  # fmt: skip
def test_only_the_requested_apps_are_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: Asked) -> None:
    variable, flag, typed, option, expected = asked
    for name in (MINE, OTHER):
        (tmp_path / name / "agents").mkdir(parents=True)
    written = os.pathsep.join(str(tmp_path / each) for each in variable.split(os.pathsep) if each)
    environ = {"PERDURE_HOME": str(tmp_path / "home"), "PERDURE_APP": written, "PERDURE_EXAMPLES": flag}
    config = StackConfig.from_env([tmp_path / each for each in typed], None, option, environ=environ)
    assert config.apps == tuple(tmp_path / each for each in expected)
    settings = in_process(environment(config, open_home(config.home), {}, {}), monkeypatch)
    assert apps.app_folders(settings.apps, settings.examples) == config.apps, "bootstrap and workers have these"
    assert [app.folder for app in apps.find_apps(config.apps)] == [*config.apps]


def test_the_stack_and_the_server_know_the_same_examples() -> None:
    assert shipped_apps() == apps.app_folders((), examples=True) == SIX
    assert apps.SHIPPED == ROOT / "perdure" / "examples"


def test_app_services_start_only_for_the_requested_apps(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()

    def services(app: Path, **environ: str) -> list[str]:
        config = StackConfig.from_env([app], environ={"PERDURE_HOME": str(tmp_path), **environ})
        return [service.name for _, service in read_all_app_services(config.apps)]

    assert services(tmp_path) == []
    assert services(apps.SHIPPED / "refunds") == ["payments"]
    assert services(apps.SHIPPED / "refunds", PERDURE_EXAMPLES="true") == ["bookings", "payments"]


@pytest.mark.parametrize("text", ["1", "0", "true", "False", "YES", "n", "on", "off", "t", "maybe", "2", " ", "truee"])
def test_the_stack_and_a_process_agree_on_a_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    environ = {"PERDURE_HOME": str(tmp_path), "PERDURE_EXAMPLES": text}
    try:
        settings = in_process({"PERDURE_EXAMPLES": text}, monkeypatch).examples
    except ValueError:
        with pytest.raises(StackError, match="PERDURE_EXAMPLES"):
            StackConfig.from_env(environ=environ)
    else:
        assert StackConfig.from_env(environ=environ).examples is settings
