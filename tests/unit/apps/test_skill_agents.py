"""perdure/apps: what an agent names of its app's skills, and the rules that hold for all agents of an app."""

from pathlib import Path

import pytest

from perdure.apps import load_app
from tests.unit.apps.problems import are_at, is_at, told
from tests.unit.apps.skill_app import FILES, STEEP, STEEP_CARD, write_app

AGENT = FILES["agents/host.yaml"]
HOUSE = FILES["rules/house.yaml"]
TOOL = '''
from perdure import tool

@tool(effect="read")
async def NAME() -> str:
    """Do."""
    return ""
'''


def test_a_fenced_tool_shares_a_blocks_name_and_is_for_agents_without_skills(tmp_path: Path) -> None:
    files = {
        "app.yaml": "name: parlour\nfenced: [steep]\nreserved: [old_kettle]\n",
        "tools/own.py": TOOL.replace("NAME", "steep") + TOOL.replace("NAME", "old_kettle"),
        "agents/plain.yaml": "id: plain\ntitle: P\ntopology: t\ntools: [steep]\n",
    }
    app = load_app(write_app(tmp_path, {**files}))
    assert told(app) == [] and {agent.id for agent in app.agents} == {"host", "plain"}
    app = load_app(
        write_app(tmp_path, {**files, "agents/host.yaml": AGENT + "tools:\n  - steep\n  - old_kettle\n  - water\n"})
    )
    expected = ["agents/host.yaml:8 steep", "agents/host.yaml:9 old_kettle", "agents/host.yaml:10 water"]
    assert are_at(told(app), expected)
    app = load_app(write_app(tmp_path, {"app.yaml": "fenced: [stoop]\n", "tools/own.py": None}))
    assert any(is_at(each, "app.yaml stoop steep") for each in told(app))


def test_two_skills_may_share_a_block_but_not_a_name_for_two(tmp_path: Path) -> None:
    same: dict[str, str | None] = {
        "skills/water/blocks/steep.py": STEEP,
        "skills/water/blocks/steep.yaml": STEEP_CARD,
    }
    assert told(load_app(write_app(tmp_path, same))) == []
    same["skills/water/blocks/steep.py"] = STEEP + "\n"
    app = load_app(write_app(tmp_path, same))
    assert are_at(told(app), ["agents/host.yaml:1 tea water steep"])
    assert set(app.skills) == {"tea", "water"} and app.agents == ()


AGENT_MISTAKES = [
    (AGENT.replace("root_skill: tea", "root_skill: te"), "4 te tea"),
    (AGENT + "skills: [tea, watr]\n", "7 watr water"),
    (AGENT + "skills: [water, water]\n", "7 water"),
    (AGENT + "skills: water\n", "7"),
    (AGENT + "skills: [7]\n", "7"),
    (
        AGENT + "skills: [{id: water, name: W, description: d, body: b}]\n",
        "7 water",
    ),
    (AGENT + "skills: [{id: own, name: W, description: d, body: b, rules: []}]\n", "7 rules"),
    (AGENT + "skills:\n  - {id: own, name: W, description: d}\n", "8 body"),
    (AGENT + "tools: [steep]\n", "7 steep tea"),
    (AGENT + "persona_key: hst\n", "7 hst host"),
    (AGENT + "persona: x\npersona_key: host\n", "8"),
    (AGENT + "day_limits: {max_token: 7}\n", "7 day_limits"),
    (AGENT.replace("max_tokens: 1000", "max_token: 7"), "6 max_token max_tokens"),
    (AGENT.replace("max_tokens: 1000", "max_tokens: 0"), "6 day_limits.max_tokens"),
]


@pytest.mark.parametrize(("text", "expected"), AGENT_MISTAKES)
def test_a_mistake_in_what_an_agent_names_is_told_with_its_line(tmp_path: Path, text: str, expected: str) -> None:
    app = load_app(write_app(tmp_path, {"agents/host.yaml": text}))
    assert any(is_at(each, f"agents/host.yaml:{expected}") for each in told(app)), told(app)
    assert app.agents == () and set(app.skills) == {"tea", "water"}


def test_an_agent_may_mix_skills_of_folders_and_skills_written_out(tmp_path: Path) -> None:
    text = "id: m\ntitle: M\ntopology: t\nskills: [{id: own, name: Own, description: Mine, body: Do.}, tea]\n"
    app = load_app(write_app(tmp_path, {"agents/m.yaml": text + "persona_key: plumber\n"}))
    agent = next(agent for agent in app.agents if agent.id == "m")
    assert [each.id for each in agent.skills] == ["own", "tea", "water"]
    assert (agent.persona, agent.persona_key, agent.root_skill) == ("You are a plumber.", "plumber", None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HOUSE + "  colour: red\n", "rules/house.yaml:5 colour"),
        (HOUSE + HOUSE, "rules/house.yaml:5 no_batches"),
        ("rules: []\n", "rules/house.yaml:1"),
        (HOUSE.replace("{capability: 'batch_*'}", "{}"), "rules/house.yaml:3 when"),
        (HOUSE.replace("no_batches", "Bad"), "rules/house.yaml:1"),
        ("- 7\n", "rules/house.yaml:1"),
    ],
)
def test_a_rule_of_the_app_that_cannot_be_read_keeps_all_its_agents_back(
    tmp_path: Path, text: str, expected: str
) -> None:
    app = load_app(write_app(tmp_path, {"rules/house.yaml": text}))
    assert is_at(told(app)[0], expected), told(app)
    assert is_at(told(app)[-1], "rules")
    assert app.agents == ()


def test_the_same_rule_in_two_files_is_a_mistake(tmp_path: Path) -> None:
    app = load_app(write_app(tmp_path, {"rules/more.yaml": HOUSE}))
    assert is_at(told(app)[0], "rules/more.yaml parlour:no_batches")
    assert app.agents == ()
