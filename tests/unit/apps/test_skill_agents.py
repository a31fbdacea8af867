"""perdure/apps: what an agent names of its app's skills, and the rules that hold for all agents of an app."""

from pathlib import Path

import pytest

from perdure.apps import load_app
from tests.unit.apps.skill_app import FILES, STEEP, STEEP_CARD, told, write_app

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
    assert told(app) == [
        "agents/host.yaml:8: steep is fenced: only an agent without skills may name it",
        "agents/host.yaml:9: old_kettle is a reserved name, which is never offered",
        "agents/host.yaml:10: unknown tool 'water'",
    ]
    app = load_app(write_app(tmp_path, {"app.yaml": "fenced: [stoop]\n", "tools/own.py": None}))
    assert "app.yaml: fenced: unknown tool 'stoop'; did you mean 'steep'?" in told(app)


def test_two_skills_may_share_a_block_but_not_a_name_for_two(tmp_path: Path) -> None:
    same: dict[str, str | None] = {
        "skills/water/blocks/steep.py": STEEP,
        "skills/water/blocks/steep.yaml": STEEP_CARD,
    }
    assert told(load_app(write_app(tmp_path, same))) == []
    same["skills/water/blocks/steep.py"] = STEEP + "\n"
    app = load_app(write_app(tmp_path, same))
    assert told(app) == ["agents/host.yaml:1: the skills tea and water define the block steep differently"]
    assert set(app.skills) == {"tea", "water"} and app.agents == ()


AGENT_MISTAKES = [
    (AGENT.replace("root_skill: tea", "root_skill: te"), "4: unknown skill 'te'; did you mean 'tea'?"),
    (AGENT + "skills: [tea, watr]\n", "7: unknown skill 'watr'; did you mean 'water'?"),
    (AGENT + "skills: [water, water]\n", "7: the skill water is given twice"),
    (AGENT + "skills: water\n", "7: must be a list of ids of skill folders, or of skills written out"),
    (AGENT + "skills: [7]\n", "7: must be the id of a skill folder, or a skill written out"),
    (
        AGENT + "skills: [{id: water, name: W, description: d, body: b}]\n",
        "7: the skill water is written out here and is a folder that another one needs",
    ),
    (AGENT + "skills: [{id: own, name: W, description: d, body: b, rules: []}]\n", "7: unknown field 'rules'"),
    (AGENT + "skills:\n  - {id: own, name: W, description: d}\n", "8: body: Field required"),
    (AGENT + "tools: [steep]\n", "7: steep is a code block: name its skill, tea, under skills"),
    (AGENT + "persona_key: hst\n", "7: unknown persona 'hst'; did you mean 'host'?"),
    (AGENT + "persona: x\npersona_key: host\n", "8: give either a persona or the key of one"),
    (AGENT + "day_limits: {max_token: 7}\n", "7: the key 'day_limits' is given twice"),
    (AGENT.replace("max_tokens: 1000", "max_token: 7"), "6: unknown field 'max_token'; did you mean 'max_tokens'?"),
    (AGENT.replace("max_tokens: 1000", "max_tokens: 0"), "6: day_limits.max_tokens: Input should be greater than 0"),
]


@pytest.mark.parametrize(("text", "expected"), AGENT_MISTAKES)
def test_a_mistake_in_what_an_agent_names_is_told_with_its_line(tmp_path: Path, text: str, expected: str) -> None:
    app = load_app(write_app(tmp_path, {"agents/host.yaml": text}))
    assert any(each.startswith(f"agents/host.yaml:{expected}") for each in told(app)), told(app)
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
        (HOUSE + "  colour: red\n", "rules/house.yaml:5: unknown field 'colour'; known: checkpoint, do"),
        (HOUSE + HOUSE, "rules/house.yaml:5: the rule no_batches is given twice"),
        ("rules: []\n", "rules/house.yaml:1: must be a list of rules, each with id, on, when and do"),
        (HOUSE.replace("{capability: 'batch_*'}", "{}"), "rules/house.yaml:3: when: Dictionary should have at least 1"),
        (HOUSE.replace("no_batches", "Bad"), "rules/house.yaml:1: id: String should match pattern"),
        ("- 7\n", "rules/house.yaml:1: must be a list of fields with their values"),
    ],
)
def test_a_rule_of_the_app_that_cannot_be_read_keeps_all_its_agents_back(
    tmp_path: Path, text: str, expected: str
) -> None:
    app = load_app(write_app(tmp_path, {"rules/house.yaml": text}))
    assert told(app)[0].startswith(expected), told(app)
    assert told(app)[-1] == "rules: has a mistake, so no agent of this app is loaded: they would run without its rules"
    assert app.agents == ()


def test_the_same_rule_in_two_files_is_a_mistake(tmp_path: Path) -> None:
    app = load_app(write_app(tmp_path, {"rules/more.yaml": HOUSE}))
    assert told(app)[0] == "rules/more.yaml: the rule parlour:no_batches is in another file already"
    assert app.agents == ()
