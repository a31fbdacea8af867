"""perdure/apps: a skill folder is loaded whole, or all that is wrong with it is told with file and line."""

from pathlib import Path

import pytest

from perdure.apps import BlockFault, Engine, load_app
from perdure.contracts.skills import CodeBlock
from tests.unit.apps.problems import are_at, is_at, told
from tests.unit.apps.skill_app import FILES, SKILL, STEEP, STEEP_CARD, WATER, write_app
from tests.unit.apps.skill_mistakes import BLOCK, CARD, DATA, FACTS, MISTAKES, TEA, Mistake, place, spoiled

OTHER = "id: other\ntitle: Other\ntopology: skill_pipeline\nskills: [water]\n"
TOOL = '''
from perdure import tool

@tool(effect="read")
async def NAME() -> str:
    """Do."""
    return ""
'''


def test_a_good_app_gives_its_agent_the_skill_with_all_that_it_has(tmp_path: Path) -> None:
    app = load_app(write_app(tmp_path))
    assert told(app) == []
    (agent,) = app.agents
    tea, water = agent.skills
    assert (agent.root_skill, agent.fallback_model) == ("tea", "openai/small")
    assert agent.day_limits is not None and agent.day_limits.max_tokens == 1000
    assert (tea.id, tea.triggers, tea.domain_tags) == ("tea", ("brew", "kettle"), ("drinks",))
    assert tea.dependencies == ("water",)
    assert (tea.persona_key, tea.persona) == ("host", "You are the host of a tea house.")
    assert tea.body.startswith("## Steps") and tea.body.endswith("One sentence.")
    assert [(each.name, each.text) for each in tea.templates] == [
        ("facts.md", "Dear {{ user_name }},\nleaves come from a bush.")
    ]
    assert [each.name for each in tea.artifacts] == ["leaves.md"]
    assert [each.name for each in tea.checkpoints] == ["before_serving"]
    (rule,) = tea.rules
    assert (rule.id, rule.app, rule.skill_id, rule.checkpoint) == (
        "parlour/tea:serving",
        "parlour",
        "tea",
        "before_serving",
    )
    (block,) = tea.blocks
    assert (block.name, block.effect, block.llm_visible, block.needs) == ("steep", "read", True, ("leaves",))
    assert block.source == STEEP
    assert water.id == "water" and water.persona == "You are a plumber."
    assert [rule.id for rule in app.rules] == ["parlour:no_batches"]
    assert app.tables["leaves"].body["_about"] == "Made up."


def test_a_file_written_elsewhere_is_read_the_same(tmp_path: Path) -> None:
    plain = load_app(write_app(tmp_path / "plain", {"app.yaml": FILES["app.yaml"]}))
    folder = write_app(tmp_path / "other")
    for path in (TEA, BLOCK, "personas/host.md"):
        text = (folder / path).read_text()
        (folder / path).write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    other = load_app(folder)
    assert told(other) == [] and other.agents == plain.agents


@pytest.mark.parametrize("mistake", MISTAKES, ids=map(place, MISTAKES))
def test_a_mistake_is_told_with_its_place_and_takes_only_what_needs_it(tmp_path: Path, mistake: Mistake) -> None:
    app = load_app(write_app(tmp_path, {mistake[0]: spoiled(mistake), "agents/other.yaml": OTHER}))
    assert any(is_at(each, place(mistake)) for each in told(app)), told(app)
    assert is_at(told(app)[-1], "agents/host.yaml:4 tea")
    assert [agent.id for agent in app.agents] == ["other"]
    assert set(app.skills) == {"water"}


@pytest.mark.parametrize("card", [FILES[CARD].replace("llm_visible: true\n", ""), "description: [\n"])
def test_the_mistakes_of_a_block_are_told_beside_those_of_its_card(tmp_path: Path, card: str) -> None:
    app = load_app(write_app(tmp_path, {CARD: card, BLOCK: f"class A: pass\n{FILES[BLOCK]}"}))
    assert any(each.startswith(f"{CARD}:") for each in told(app)), told(app)
    assert any(is_at(each, f"{BLOCK}:1 A") for each in told(app)), told(app)


def test_an_input_may_not_require_what_run_does_not_take(tmp_path: Path) -> None:
    app = load_app(write_app(tmp_path, {CARD: FILES[CARD].replace("required: [leaf]", "required: [leaf, pot]")}))
    assert is_at(told(app)[0], f"{BLOCK}:4 pot")


def test_a_skill_with_mistakes_is_what_a_name_beside_it_may_have_meant(tmp_path: Path) -> None:
    other = OTHER.replace("[water]", "[tee]")
    app = load_app(write_app(tmp_path, {CARD: "", "agents/other.yaml": other}))
    assert any(is_at(each, "agents/other.yaml:4 tee tea") for each in told(app))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (TEA, "skills/tea SKILL.md"),
        (BLOCK, f"{CARD} steep.py"),
        (CARD, f"{BLOCK} steep.yaml"),
        (FACTS, f"{TEA}:9 facts.md"),
        ("personas/host.md", f"{TEA}:7 personas/host.md"),
        (DATA, f"{CARD}:14 leaves"),
    ],
)
def test_a_file_that_is_missing_is_told_where_it_is_missed(tmp_path: Path, path: str, expected: str) -> None:
    app = load_app(write_app(tmp_path, {path: None, "agents/other.yaml": OTHER}))
    assert is_at(told(app)[0], expected)
    assert [agent.id for agent in app.agents] == ["other"] and set(app.skills) == {"water"}


def test_many_mistakes_are_told_at_once(tmp_path: Path) -> None:
    skill = SKILL.replace("triggers:", "trigers:").replace("## Steps", "## Step").replace("do: require_hitl", "do: x")
    app = load_app(write_app(tmp_path, {TEA: skill, BLOCK: "x = 1\n", CARD: STEEP_CARD.replace("[leaves]", "[l]")}))
    places = [problem.split(" ")[0] for problem in told(app)]
    assert places == [f"{TEA}:5:", f"{TEA}:18:", f"{TEA}:23:", f"{BLOCK}:1:", f"{CARD}:14:", "agents/host.yaml:4:"]


def skill(name: str, *dependencies: str) -> str:
    return WATER.replace("water", name).replace("persona: plumber", f"dependencies: [{', '.join(dependencies)}]")


def test_a_circle_of_dependencies_is_named_once_and_takes_all_that_need_it(tmp_path: Path) -> None:
    skills = {"a": ("b",), "b": ("c",), "c": ("a",), "d": ("d",), "e": ("a",), "f": ()}
    files: dict[str, str | None] = {f"skills/{name}/SKILL.md": skill(name, *others) for name, others in skills.items()}
    app = load_app(write_app(tmp_path, files))
    expected = ["skills/a/SKILL.md:5 b c a", "skills/d/SKILL.md:5 d", "skills/e/SKILL.md:5 a"]
    assert are_at(told(app), expected)
    assert set(app.skills) == {"f", "tea", "water"}
    assert [agent.id for agent in app.agents] == ["host"]


def test_what_needs_a_skill_with_a_mistake_has_one_too(tmp_path: Path) -> None:
    app = load_app(write_app(tmp_path, {"skills/water/SKILL.md": WATER.replace("name: Water\n", "")}))
    own, needs, agent = "skills/water/SKILL.md:2 name", f"{TEA}:8 water", "agents/host.yaml:4 tea"
    assert are_at(told(app), [own, needs, agent]) or are_at(told(app), [needs, own, agent])


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("entity_resolve", {}),
        ("create_entity", {}),
        ("own_tool", {"tools/own.py": TOOL.replace("NAME", "own_tool")}),
        ("old_kettle", {}),
        ("spare", {}),
        ("Steep", {}),
    ],
)
def test_a_block_takes_no_name_that_is_taken(tmp_path: Path, name: str, files: dict[str, str]) -> None:
    blocks = {f"skills/water/blocks/{name}.py": STEEP, f"skills/water/blocks/{name}.yaml": STEEP_CARD}
    app = load_app(write_app(tmp_path, {**files, **blocks}), Engine(reserved=("spare",)))
    (first,) = [each for each in told(app) if each.startswith("skills/water/blocks")]
    assert name in first
    assert app.agents == () and app.skills == {}


@pytest.mark.parametrize(
    ("signature", "told_of"),
    [
        ("leaf: str, data: Any", f"{BLOCK}:4 leaf"),
        ("leaf: str = 'green', data: Any = None", None),
        ("data: Any, leaf: str = 'green', *, pot: str = ''", None),
        ("**given: Any", None),
    ],
)
def test_run_is_held_against_what_the_input_may_leave_out(tmp_path: Path, signature: str, told_of: str | None) -> None:
    block = STEEP.replace("leaf: str, data: dict[str, Any]", signature)
    optional = STEEP_CARD.replace("  required: [leaf]\n", "")
    app = load_app(write_app(tmp_path, {BLOCK: block, CARD: optional}))
    assert are_at(told(app)[:1], [told_of] if told_of else [])


def test_what_is_only_worth_a_word_is_told_and_loaded(tmp_path: Path) -> None:
    text = SKILL.replace("for a leaf", "for a leaf " * 12).replace("A leaf", "A leaf " * 500)
    text = text.replace("artifacts: [leaves.md]\n", "").replace("    checkpoint: before_serving\n", "")
    app = load_app(write_app(tmp_path, {TEA: text}))
    assert all(problem.warning for problem in app.problems)
    expected = [f"{TEA}:2 artifacts/leaves.md", f"{TEA}:4 53", f"{TEA}:10 before_serving", f"{TEA}:21 900"]
    assert are_at(told(app), expected)
    assert [agent.id for agent in app.agents] == ["host"]


def test_a_checkpoint_may_say_what_happens_when_nobody_can_be_asked(tmp_path: Path) -> None:
    text = SKILL.replace("[before_serving]", "[{name: before_serving, go_on_when_unavailable: true}]")
    app = load_app(write_app(tmp_path, {TEA: text}))
    assert told(app) == [] and app.skills["tea"].checkpoints[0].go_on_when_unavailable is True
    assert load_app(write_app(tmp_path)).skills["tea"].checkpoints[0].go_on_when_unavailable is False


def test_the_sandboxes_own_check_is_asked_for_every_block_and_its_word_is_told(tmp_path: Path) -> None:
    asked: list[CodeBlock] = []

    def check(block: CodeBlock) -> list[BlockFault]:
        asked.append(block)
        return [BlockFault(2, "minutes is no number")]

    app = load_app(write_app(tmp_path), Engine(check_block=check))
    assert [block.name for block in asked] == ["steep"]
    assert is_at(told(app)[0], f"{BLOCK}:2 minutes is no number") and app.agents == ()


def test_an_app_may_not_take_the_engines_name(tmp_path: Path) -> None:
    app = load_app(write_app(tmp_path, {"app.yaml": "name: platform\nreserved: 7\nfenced: [1]\n"}))
    assert are_at(told(app)[:3], ["app.yaml:1 platform", "app.yaml:2 reserved", "app.yaml:3 fenced"])
    assert not any(rule.id.startswith("platform:") for rule in app.rules)
