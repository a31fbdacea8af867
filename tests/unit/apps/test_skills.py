"""perdure/apps: a skill folder is loaded whole, or all that is wrong with it is told with file and line."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import JsonValue

from perdure.apps import BlockFault, Engine, ExampleRun, load_app
from perdure.apps.code_blocks import difference
from perdure.contracts.skills import CodeBlock
from tests.unit.apps.skill_app import FILES, SKILL, STEEP, STEEP_CARD, WATER, are_at, is_at, problems_of, write_app

TEA = "skills/tea/SKILL.md"
CARD = "skills/tea/blocks/steep.yaml"
BLOCK = "skills/tea/blocks/steep.py"
FACTS = "skills/tea/templates/facts.md"
LEAVES = "skills/tea/artifacts/leaves.md"
DATA = "data/leaves.json"
ALL = None
"""Instead of the whole file."""
Mistake = tuple[str, str | None, str, int | None, str]
FRONT: list[Mistake] = [
    (TEA, "id: tea", "id: coffee", 2, "coffee tea"), (TEA, "triggers:", "trigers:", 5, "trigers triggers"),
    (TEA, "name: Tea making", "name: 7", 3, "name"), (TEA, "name: Tea making\n", "", 2, "name"),
    (TEA, "for a leaf.", "for\n\n  a leaf.", 4, ""),
    (TEA, "persona: host", "persona: hst", 7, "personas/hst.md host"), (TEA, "[water]", "[watr]", 8, "watr water"),
    (TEA, "[water]", "[water, water]", 8, "dependencies"), (TEA, "[brew, kettle]", '["a\\0b"]', 5, ""),
    (TEA, "[drinks]", '["\\ud800"]', 6, "domain_tags.0"), (TEA, "[drinks]", "[2026-01-01]", 6, "domain_tags.0"),
    (TEA, "[before_serving]", "[{name: x, go_no: 1}]", 11, "go_no"),
    (TEA, "[before_serving]", "[before_serving, before_serving]", 11, "checkpoints"),
    (TEA, "[before_serving]", "[7]", 11, ""), (TEA, "id: tea\n", "id: tea\nid: tea\n", 3, "id"),
    (TEA, "---\nid", "id", 1, ""), (TEA, ALL, "---\nid: tea\n", 1, ""), (TEA, ALL, "---\n- tea\n---\n", 2, ""),
    (TEA, "[brew, kettle]", "[brew", 6, ""), (TEA, "One", "\x00", 31, ""),
    (TEA, "for a leaf", "for a leaf " * 40, 4, ""),
]  # fmt: skip
BODY: list[Mistake] = [
    (TEA, "## Requirements", "## Needs", 23, ""),
    (TEA, "- A leaf.\n", "", 27, "Requirements"),
    (TEA, "## Requirements", "## steps", 27, "steps"),
    (TEA, "## Steps", "## Description\nx\n## Steps", 23, "Description"),
    (TEA, "## Requirements", "```\n## Requirements\n```", 23, "Requirements"),
    (TEA, "A leaf", "A leaf " * 1000, 23, ""),
]
BESIDE: list[Mistake] = [
    (TEA, "[facts.md]", "[fact.md]", 9, "templates/fact.md facts.md"),
    (TEA, "[facts.md]", "[../SKILL.md]", 9, "templates/../SKILL.md facts.md"),
    (TEA, "[leaves.md]", "[leaves.md, leaves.md]", 10, "leaves.md"),
    (FACTS, ALL, "Hello\n{{user_nam}}\n", 2, "user_nam user_name"), (FACTS, ALL, "\n\nx {{user_name\n", 3, ""),
    (LEAVES, ALL, " \n", 1, ""), (LEAVES, ALL, "x" * 70_000, None, ""), ("personas/host.md", ALL, "a\nb\x00", 2, ""),
]  # fmt: skip
RULES: list[Mistake] = [
    (TEA, "    do:", "    doo: 1\n    do:", 18, "doo do"),
    (TEA, "after_tool_call", "after_tool", 14, "after_tool after_tool_call"),
    (TEA, "require_hitl", "require_hitt", 18, "require_hitt require_hitl"),
    (TEA, "tool: steep", "tols: steep", 16, "tols tool"), (TEA, "tool: steep", "tool: step", 16, "step steep"),
    (TEA, "tool: steep", "tool: []", 16, ""), (TEA, "tool: steep", "capability: 'tea.[ab]'", 16, "capability"),
    (TEA, "tool: steep", "counter: {name: iterations, at_least: 3}", 16, "iterations iteration"),
    (TEA, "tool: steep", "counter: {name: iteration, at_last: 3}", 16, "at_last at_least"),
    (TEA, "equals:", "equal:", 17, "equal equals"), (TEA, "equals: ok", "at_least: much", 17, "result.at_least"),
    (TEA, ", equals: ok", "", 17, "one_of"), (TEA, "{path: status, ", "{", 17, ""),
    (TEA, "on: after", "on: before", 17, ""), (TEA, "    checkpoint: b", "    checkpoint: d", 19, "defore_serving"),
    (TEA, "do: require_hitl", "do: abort", 19, ""), (TEA, "rules:\n  -", "rules:\n   ", 12, "rules"),
]  # fmt: skip
BLOCKS: list[Mistake] = [
    (BLOCK, ALL, "y = 1\nx = (\n", 2, ""), (BLOCK, ALL, "x = 1\nx = 2\n", 1, ""),
    (BLOCK, ALL, "async def run(leaf, data): ...\n", 1, ""), (BLOCK, "def run(leaf: str, ", "def run(", 4, "leaf"),
    (BLOCK, ", data: dict[str, Any])", ")", 4, "data"), (BLOCK, "leaf: str, ", "leaf: str, sugar: int, ", 4, "sugar"),
    (BLOCK, "leaf: str, ", "leaf: str, /, ", 4, "leaf"), (BLOCK, ", data", ",\n*, pot: str, data", 5, "pot"),
    (BLOCK, ALL, "import json\nimport _thread\n{}\n", 2, "_thread"),
    (BLOCK, ALL, "from json import _x\n{}\n", 1, "_x"), (BLOCK, ALL, "import json\nfrom . import x\n", 2, ""),
    (BLOCK, ALL, "x = ().__class__\n{}\n", 1, "__class__"), (BLOCK, ALL, "x = given._secret\n{}\n", 1, "_secret"),
    (BLOCK, ALL, "x = __import__('os')\n{}\n", 1, "__import__"), (BLOCK, ALL, "class A: pass\n{}\n", 1, "A"),
    (BLOCK, "def run(", "while True:\n    pass\n\n\ndef run(", 4, ""),
    (BLOCK, "def run(", "print(1)\n\n\ndef run(", 4, ""),
    (BLOCK, "def run(", "for x in []:\n    pass\ndef run(", 4, ""),
    (BLOCK, "def run(", "try:\n    x = 1\nfinally:\n    x = 2\ndef run(", 4, ""),
    (BLOCK, "def run(", "x = 1\nx += 1\ndef run(", 5, ""), (BLOCK, ALL, "y = 1\nx = '\\d'\n", 2, ""),
    (BLOCK, ALL, "y = 1\nx = " + "(" * 300 + ")" * 300, 2, ""), (CARD, "llm_visible: true\n", "", 1, "llm_visible"),
    (CARD, "capability: tea.steep", "effect: keyed", 3, "keyed"),
    (CARD, "capability: tea.steep", "risk: huge", 3, "huge"),
    (CARD, "    leaf: {", "    green leaf: {", 7, "green leaf"), (CARD, "    leaf: {", "    class: {", 7, "class"),
    (CARD, "tea.steep", "tea.*", 3, ""), (CARD, "[leaves]", "[leafs]", 14, "leafs leaves"),
    (CARD, "{type: string}", "{type: sting}", 7, "sting"), (CARD, "{type: string}", "{pattern: '('}", 7, ""),
    (CARD, "output:\n  type: object", "output:\n  type: array", 10, "output"),
    (CARD, "{type: string}", "{$ref: '#/$defs/leaf'}", 7, "#/$defs/leaf"),
    (CARD, "{type: string}", "{$ref: 'https://example.org/x'}", 7, "https://example.org/x"),
    (CARD, "    leaf: {", "    data: {", 7, "data"),
    (CARD, "needs: [leaves]", "examples: [{inputs: {}}]", 14, "inputs input"),
    (CARD, "needs: [leaves]", "examples: [{output: {}}]", 14, ""),
    (CARD, "needs: [leaves]", "examples: {}", 14, "examples"),
    (CARD, "input:\n", "input:\n  $ref: '#'\n", 4, "input"),
]  # fmt: skip
TABLES: list[Mistake] = [
    (DATA, ALL, '{\n"rows": ]}', 2, ""), (DATA, ALL, '{"rows": []}', 1, "_about"), (DATA, ALL, "[1]", 1, "_about"),
    (DATA, ALL, '{"_about": "x", "a": NaN}', None, ""), (DATA, ALL, '{"_about": "x", "_about": "y"}', None, "_about"),
    (DATA, ALL, '{"_about": "x", "a": "\\u0000"}', None, ""),
    (DATA, ALL, '{"_about": "x", "a": ' + "[" * 70 + "]" * 70 + "}", None, ""),
    (DATA, ALL, '{"_about": "x", "a": ' + "[" * 100_000 + "]" * 100_000 + "}", None, ""),
]  # fmt: skip
MISTAKES = FRONT + BODY + BESIDE + RULES + BLOCKS + TABLES
AGENT = FILES["agents/host.yaml"]
HOUSE = FILES["rules/house.yaml"]


def spoiled(mistake: Mistake) -> str:
    """The file's text with the mistake in it."""
    path, before, after, _, _ = mistake
    if before is ALL:
        return after
    assert before in FILES[path], f"{path} has no {before!r}"
    return FILES[path].replace(before, after, 1)


def place(mistake: Mistake) -> str:
    """Where the problem is, and the names in it."""
    path, _, _, line, names = mistake
    return f"{path}:{line} {names}" if line else f"{path} {names}"


OTHER = "id: other\ntitle: Other\ntopology: skill_pipeline\nskills: [water]\n"
TOOL = '''
from perdure import tool

@tool(effect="read")
async def NAME() -> str:
    """Do."""
    return ""
'''


def test_a_valid_app_gives_its_agent_the_whole_skill(tmp_path: Path) -> None:
    app = load_app(write_app(tmp_path))
    assert problems_of(app) == []
    (agent,) = app.agents
    tea, water = agent.skills
    assert (agent.root_skill, agent.fallback_model) == ("tea", "openai/small")
    assert agent.day_limits is not None and agent.day_limits.max_tokens == 1000
    assert (tea.id, tea.triggers, tea.domain_tags) == ("tea", ("brew", "kettle"), ("drinks",))
    assert tea.dependencies == ("water",)
    assert (tea.persona_key, tea.persona) == ("host", FILES["personas/host.md"].strip())
    assert tea.body.startswith("## Steps") and tea.body.endswith("One sentence.")
    (template,) = tea.templates
    assert (template.name, template.text) == ("facts.md", "Dear {{ user_name }},\nleaves come from a bush.")
    assert [each.name for each in tea.artifacts] == ["leaves.md"]
    assert [each.name for each in tea.checkpoints] == ["before_serving"]
    (rule,) = tea.rules
    assert (rule.id, rule.app) == ("parlour/tea:serving", "parlour")
    assert (rule.skill_id, rule.checkpoint) == ("tea", "before_serving")
    (block,) = tea.blocks
    assert (block.name, block.effect, block.llm_visible, block.needs) == ("steep", "read", True, ("leaves",))
    assert block.source == STEEP
    assert water.id == "water" and water.persona == "You are a plumber."
    assert [rule.id for rule in app.rules] == ["parlour:no_batches"]
    assert app.tables["leaves"].body["_about"] == "Made up."


def test_a_file_with_a_byte_order_mark_and_crlf_is_read_alike(tmp_path: Path) -> None:
    plain = load_app(write_app(tmp_path / "plain", {"app.yaml": FILES["app.yaml"]}))
    folder = write_app(tmp_path / "other")
    for path in (TEA, BLOCK, "personas/host.md"):
        (folder / path).write_bytes(b"\xef\xbb\xbf" + (folder / path).read_text().replace("\n", "\r\n").encode())
    other = load_app(folder)
    assert problems_of(other) == [] and other.agents == plain.agents


@pytest.mark.parametrize("mistake", MISTAKES, ids=map(place, MISTAKES))
def test_a_mistake_is_reported_with_its_place_and_takes_only_what_needs_it(tmp_path: Path, mistake: Mistake) -> None:
    app = load_app(write_app(tmp_path, {mistake[0]: spoiled(mistake), "agents/other.yaml": OTHER}))
    assert any(is_at(each, place(mistake)) for each in problems_of(app)), problems_of(app)
    assert is_at(problems_of(app)[-1], "agents/host.yaml:4 tea")
    assert [agent.id for agent in app.agents] == ["other"]
    assert set(app.skills) == {"water"}


@pytest.mark.parametrize("card", [FILES[CARD].replace("llm_visible: true\n", ""), "description: [\n"])
def test_the_mistakes_of_a_block_are_reported_beside_those_of_its_card(tmp_path: Path, card: str) -> None:
    app = load_app(write_app(tmp_path, {CARD: card, BLOCK: f"class A: pass\n{FILES[BLOCK]}"}))
    assert any(each.startswith(f"{CARD}:") for each in problems_of(app)), problems_of(app)
    assert any(is_at(each, f"{BLOCK}:1 A") for each in problems_of(app)), problems_of(app)


@pytest.mark.parametrize(("path", "expected"), [
    (TEA, "skills/tea SKILL.md"), (BLOCK, f"{CARD} steep.py"), (CARD, f"{BLOCK} steep.yaml"),
    (FACTS, f"{TEA}:9 facts.md"), ("personas/host.md", f"{TEA}:7 personas/host.md"), (DATA, f"{CARD}:14 leaves"),
])  # fmt: skip
def test_a_file_that_is_missing_is_reported_where_it_is_missed(tmp_path: Path, path: str, expected: str) -> None:
    app = load_app(write_app(tmp_path, {path: None, "agents/other.yaml": OTHER}))
    assert is_at(problems_of(app)[0], expected)
    assert [agent.id for agent in app.agents] == ["other"] and set(app.skills) == {"water"}


def test_many_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    skill = SKILL.replace("triggers:", "trigers:").replace("## Steps", "## Step").replace("do: require_hitl", "do: x")
    app = load_app(write_app(tmp_path, {TEA: skill, BLOCK: "x = 1\n", CARD: STEEP_CARD.replace("[leaves]", "[l]")}))
    places = [problem.split(" ")[0] for problem in problems_of(app)]
    assert places == [f"{TEA}:5:", f"{TEA}:18:", f"{TEA}:23:", f"{BLOCK}:1:", f"{CARD}:14:", "agents/host.yaml:4:"]


def skill(name: str, *dependencies: str) -> str:
    return WATER.replace("water", name).replace("persona: plumber", f"dependencies: [{', '.join(dependencies)}]")


def test_a_dependency_cycle_is_reported_once(tmp_path: Path) -> None:
    skills = {"a": ("b",), "b": ("c",), "c": ("a",), "d": ("d",), "e": ("a",), "f": ()}
    files: dict[str, str | None] = {f"skills/{name}/SKILL.md": skill(name, *others) for name, others in skills.items()}
    app = load_app(write_app(tmp_path, files))
    expected = ["skills/a/SKILL.md:5 b c a", "skills/d/SKILL.md:5 d", "skills/e/SKILL.md:5 a"]
    assert are_at(problems_of(app), expected)
    assert set(app.skills) == {"f", "tea", "water"}
    assert [agent.id for agent in app.agents] == ["host"]


def test_a_skill_that_depends_on_a_faulty_one_is_left_out_too(tmp_path: Path) -> None:
    spoiled_water = {"skills/water/SKILL.md": WATER.replace("name: Water\n", "")}
    app = load_app(write_app(tmp_path / "needs", {**spoiled_water}))
    expected = ["agents/host.yaml:4 tea", "skills/water/SKILL.md:2 name", f"{TEA}:8 water"]
    assert are_at(sorted(problems_of(app), key=lambda each: each.replace(TEA, "z")), expected)
    app = load_app(write_app(tmp_path / "means", {CARD: "", "agents/other.yaml": OTHER.replace("[water]", "[tee]")}))
    assert any(is_at(each, "agents/other.yaml:4 tee tea") for each in problems_of(app))


@pytest.mark.parametrize("name", ["entity_resolve", "create_entity", "own_tool", "old_kettle", "spare", "Steep"])
def test_a_block_takes_no_name_that_is_taken(tmp_path: Path, name: str) -> None:
    blocks = {f"skills/water/blocks/{name}.py": STEEP, f"skills/water/blocks/{name}.yaml": STEEP_CARD}
    own = {"tools/own.py": TOOL.replace("NAME", "own_tool")}
    app = load_app(write_app(tmp_path, {**own, **blocks}), Engine(reserved=("spare",)))
    (first,) = [each for each in problems_of(app) if each.startswith("skills/water/blocks")]
    assert name in first and app.agents == () and app.skills == {}


@pytest.mark.parametrize(("signature", "required", "told_of"), [
    ("leaf: str, data: Any", "", f"{BLOCK}:4 leaf"),
    ("leaf: str, data: Any", "  required: [leaf, pot]\n", f"{BLOCK}:4 pot"),
    ("leaf: str = 'green', data: Any = None", "", None),
    ("data: Any, leaf: str = 'green', *, pot: str = ''", "", None),
    ("**given: Any", "", None),
])  # fmt: skip
def test_run_must_match_the_required_inputs(tmp_path: Path, signature: str, required: str, told_of: str | None) -> None:
    block = STEEP.replace("leaf: str, data: dict[str, Any]", signature)
    card = STEEP_CARD.replace("  required: [leaf]\n", required)
    app = load_app(write_app(tmp_path, {BLOCK: block, CARD: card}))
    assert are_at(problems_of(app)[:1], [told_of] if told_of else [])


def test_a_minor_fault_is_a_warning_and_the_skill_loads(tmp_path: Path) -> None:
    text = SKILL.replace("for a leaf", "for a leaf " * 12).replace("A leaf", "A leaf " * 500)
    text = text.replace("artifacts: [leaves.md]\n", "").replace("    checkpoint: before_serving\n", "")
    app = load_app(write_app(tmp_path, {TEA: text}))
    assert all(problem.warning for problem in app.problems)
    expected = [f"{TEA}:2 artifacts/leaves.md", f"{TEA}:4 53", f"{TEA}:10 before_serving", f"{TEA}:21 900"]
    assert are_at(problems_of(app), expected)
    assert [agent.id for agent in app.agents] == ["host"]


def test_a_checkpoint_can_state_what_happens_if_it_cannot_be_opened(tmp_path: Path) -> None:
    text = SKILL.replace("[before_serving]", "[{name: before_serving, go_on_when_unavailable: true}]")
    for app, goes_on in ((load_app(write_app(tmp_path, {TEA: text})), True), (load_app(write_app(tmp_path)), False)):
        assert problems_of(app) == [] and app.skills["tea"].checkpoints[0].go_on_when_unavailable is goes_on


def test_the_sandbox_checks_every_block_and_its_findings_are_reported(tmp_path: Path) -> None:
    asked: list[CodeBlock] = []

    def check(block: CodeBlock) -> list[BlockFault]:
        asked.append(block)
        return [BlockFault(2, "minutes is no number")]

    app = load_app(write_app(tmp_path), Engine(check_block=check))
    assert [block.name for block in asked] == ["steep"]
    assert is_at(problems_of(app)[0], f"{BLOCK}:2 minutes is no number") and app.agents == ()


def test_an_app_cannot_take_the_platforms_name(tmp_path: Path) -> None:
    app = load_app(write_app(tmp_path, {"app.yaml": "name: platform\nreserved: 7\nfenced: [1]\n"}))
    assert are_at(problems_of(app)[:3], ["app.yaml:1 platform", "app.yaml:2 reserved", "app.yaml:3 fenced"])
    assert not any(rule.id.startswith("platform:") for rule in app.rules)


def test_a_fenced_tool_shares_a_blocks_name_and_is_for_agents_without_skills(tmp_path: Path) -> None:
    files = {
        "app.yaml": "name: parlour\nfenced: [steep]\nreserved: [old_kettle]\n",
        "tools/own.py": TOOL.replace("NAME", "steep") + TOOL.replace("NAME", "old_kettle"),
        "agents/plain.yaml": "id: plain\ntitle: P\ntopology: t\ntools: [steep]\n",
    }
    app = load_app(write_app(tmp_path, {**files}))
    assert problems_of(app) == [] and {agent.id for agent in app.agents} == {"host", "plain"}
    app = load_app(
        write_app(tmp_path, {**files, "agents/host.yaml": AGENT + "tools:\n  - steep\n  - old_kettle\n  - water\n"})
    )
    expected = ["agents/host.yaml:8 steep", "agents/host.yaml:9 old_kettle", "agents/host.yaml:10 water"]
    assert are_at(problems_of(app), expected)
    app = load_app(write_app(tmp_path, {"app.yaml": "fenced: [stoop]\n", "tools/own.py": None}))
    assert any(is_at(each, "app.yaml stoop steep") for each in problems_of(app))


def test_two_skills_may_share_a_block_but_not_a_name_for_two(tmp_path: Path) -> None:
    same: dict[str, str | None] = {"skills/water/blocks/steep.py": STEEP, "skills/water/blocks/steep.yaml": STEEP_CARD}
    assert problems_of(load_app(write_app(tmp_path, same))) == []
    same["skills/water/blocks/steep.py"] = STEEP + "\n"
    app = load_app(write_app(tmp_path, same))
    assert are_at(problems_of(app), ["agents/host.yaml:1 tea water steep"])
    assert set(app.skills) == {"tea", "water"} and app.agents == ()


@pytest.mark.parametrize(("text", "expected"), [
    (AGENT.replace("root_skill: tea", "root_skill: te"), "4 te tea"),
    (AGENT + "skills: [tea, watr]\n", "7 watr water"), (AGENT + "skills: [water, water]\n", "7 water"),
    (AGENT + "skills: water\n", "7"), (AGENT + "skills: [7]\n", "7"),
    (AGENT + "skills: [{id: water, name: W, description: d, body: b}]\n", "7 water"),
    (AGENT + "skills: [{id: own, name: W, description: d, body: b, rules: []}]\n", "7 rules"),
    (AGENT + "skills:\n  - {id: own, name: W, description: d}\n", "8 body"),
    (AGENT + "tools: [steep]\n", "7 steep tea"), (AGENT + "persona_key: hst\n", "7 hst host"),
    (AGENT + "persona: x\npersona_key: host\n", "8"), (AGENT + "day_limits: {max_token: 7}\n", "7 day_limits"),
    (AGENT.replace("max_tokens: 1000", "max_token: 7"), "6 max_token max_tokens"),
    (AGENT.replace("max_tokens: 1000", "max_tokens: 0"), "6 day_limits.max_tokens"),
])  # fmt: skip
def test_a_mistake_in_what_an_agent_names_is_reported_with_its_line(tmp_path: Path, text: str, expected: str) -> None:
    app = load_app(write_app(tmp_path, {"agents/host.yaml": text}))
    assert any(is_at(each, f"agents/host.yaml:{expected}") for each in problems_of(app)), problems_of(app)
    assert app.agents == () and set(app.skills) == {"tea", "water"}


def test_an_agent_may_mix_skills_of_folders_and_skills_written_out(tmp_path: Path) -> None:
    text = "id: m\ntitle: M\ntopology: t\nskills: [{id: own, name: Own, description: Mine, body: Do.}, tea]\n"
    app = load_app(write_app(tmp_path, {"agents/m.yaml": text + "persona_key: plumber\n"}))
    agent = next(agent for agent in app.agents if agent.id == "m")
    assert [each.id for each in agent.skills] == ["own", "tea", "water"]
    assert (agent.persona, agent.persona_key, agent.root_skill) == ("You are a plumber.", "plumber", None)


@pytest.mark.parametrize(("text", "expected"), [
    (HOUSE + "  colour: red\n", "rules/house.yaml:5 colour"),
    (HOUSE + HOUSE, "rules/house.yaml:5 no_batches"),
    ("rules: []\n", "rules/house.yaml:1"),
    (HOUSE.replace("{capability: 'batch_*'}", "{}"), "rules/house.yaml:3 when"),
    (HOUSE.replace("no_batches", "Bad"), "rules/house.yaml:1"),
    ("- 7\n", "rules/house.yaml:1"),
    (HOUSE, "rules/more.yaml parlour:no_batches"),  # the same rule in two files
])  # fmt: skip
def test_agents_of_an_app_with_an_unreadable_rule_are_not_loaded(tmp_path: Path, text: str, expected: str) -> None:
    files = {"rules/more.yaml": HOUSE} if text is HOUSE else {"rules/house.yaml": text}
    app = load_app(write_app(tmp_path, {**files}))
    assert is_at(problems_of(app)[0], expected), problems_of(app)
    assert is_at(problems_of(app)[-1], "rules") or text is HOUSE
    assert app.agents == ()


INPUT_EXAMPLES = STEEP_CARD.replace("  required: [leaf]\n", "  required: [leaf]\n  examples:\n    - {leaf: green}\n", 1)
EXAMPLES = f"""{INPUT_EXAMPLES}examples:
  - input: {{leaf: black}}
    output: {{minutes: 3}}
  - input: {{leaf: white}}
"""


class Kitchen:
    """Tries as a sandbox would; `answers` are by leaf."""

    def __init__(self, **answers: ExampleRun | None) -> None:
        self.answers = answers
        self.asked: list[tuple[str, list[str]]] = []

    def __call__(
        self, block: CodeBlock, inputs: Mapping[str, JsonValue], tables: Mapping[str, JsonValue]
    ) -> ExampleRun | None:
        leaf = str(inputs["leaf"])
        self.asked.append((leaf, [*tables]))
        return self.answers.get(leaf, ExampleRun({"minutes": 3.0}))


def test_examples_are_no_part_of_what_is_published_and_are_not_run_unless_asked_for(tmp_path: Path) -> None:
    plain = load_app(write_app(tmp_path / "plain", {CARD: INPUT_EXAMPLES}))
    with_more = load_app(write_app(tmp_path / "more", {CARD: EXAMPLES}))
    assert problems_of(with_more) == [] and with_more.agents == plain.agents


@pytest.mark.parametrize(("answers", "card", "found", "run"), [
    ({}, EXAMPLES, [], ["green", "black", "white"]),
    ({"black": ExampleRun({"minutes": 4})}, EXAMPLES, [f"{CARD}:19 minutes 4 3"], ["green", "black", "white"]),
    ({"green": ExampleRun(fault="KeyError: 'green'", line=5), "white": ExampleRun(fault="no")}, EXAMPLES,
        [f"{CARD}:10 KeyError green steep.py:5", f"{CARD}:20 no"], ["green", "black", "white"]),
    ({"green": ExampleRun(fault="stopped after 5 s", timed_out=True)}, EXAMPLES, [f"{CARD}:10 stopped"], ["green"]),
    ({"green": None}, EXAMPLES, [], ["green"]),  # where nothing can be run nothing is wrong
    ({}, INPUT_EXAMPLES.replace("{leaf: green}", "green"), [f"{CARD}:10"], []),
], ids=["good", "other result", "fails", "out of time", "no sandbox", "no object"])  # fmt: skip
def test_each_example_is_run_and_what_differs_is_reported_at_its_line(
    tmp_path: Path, answers: dict[str, ExampleRun | None], card: str, found: list[str], run: list[str]
) -> None:
    kitchen = Kitchen(**answers)
    app = load_app(write_app(tmp_path, {CARD: card}), Engine(try_block=kitchen))
    assert are_at(problems_of(app), [*found, "agents/host.yaml:4 tea"] if found else [])
    assert kitchen.asked == [(leaf, ["leaves"]) for leaf in run]


@pytest.mark.parametrize(("value", "expected", "found"), [
    ({"a": [1, {"b": "x"}]}, {"a": [1.0, {"b": "x"}]}, None), ({"a": True}, {"a": 1}, "a true 1"),
    ({"a": 0}, {"a": False}, "a 0 false"), ({"a": None}, {}, "a"), ({}, {"a": None}, "a"),
    ({"a": [1, 2]}, {"a": [1]}, "a 2 1"), ({"a": [{"b": 1}]}, {"a": [{"b": 2}]}, "a.0.b 1 2"),
    ({"a": {}}, {"a": []}, "a {} []"), ({"a": "x" * 300}, {"a": ""}, f"a {'x' * 118}…"),
])  # fmt: skip
def test_a_difference_has_its_place(value: JsonValue, expected: JsonValue, found: str | None) -> None:
    told_of = difference(value, expected)
    place, *values = (found or "None").split()
    assert str(told_of).split()[0] == place and all(each in str(told_of) for each in values)
