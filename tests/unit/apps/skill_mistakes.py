"""One mistake each in the app of skill_app.py: file, replaced text, replacement, line of the problem, names in it."""

from tests.unit.apps.skill_app import FILES

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
    (TEA, "id: tea", "id: coffee", 2, "coffee tea"),
    (TEA, "triggers:", "trigers:", 5, "trigers triggers"),
    (TEA, "name: Tea making", "name: 7", 3, "name"),
    (TEA, "name: Tea making\n", "", 2, "name"),
    (TEA, "for a leaf.", "for\n\n  a leaf.", 4, ""),
    (TEA, "persona: host", "persona: hst", 7, "personas/hst.md host"),
    (TEA, "[water]", "[watr]", 8, "watr water"),
    (TEA, "[water]", "[water, water]", 8, "dependencies"),
    (TEA, "[brew, kettle]", '["a\\0b"]', 5, ""),
    (TEA, "[drinks]", '["\\ud800"]', 6, "domain_tags.0"),
    (TEA, "[drinks]", "[2026-01-01]", 6, "domain_tags.0"),
    (TEA, "[before_serving]", "[{name: x, go_no: 1}]", 11, "go_no"),
    (TEA, "[before_serving]", "[before_serving, before_serving]", 11, "checkpoints"),
    (TEA, "[before_serving]", "[7]", 11, ""),
    (TEA, "id: tea\n", "id: tea\nid: tea\n", 3, "id"),
    (TEA, "---\nid", "id", 1, ""),
    (TEA, ALL, "---\nid: tea\n", 1, ""),
    (TEA, ALL, "---\n- tea\n---\n", 2, ""),
    (TEA, "[brew, kettle]", "[brew", 6, ""),
    (TEA, "One", "\x00", 31, ""),
    (TEA, "for a leaf", "for a leaf " * 40, 4, ""),
]
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
    (FACTS, ALL, "Hello\n{{user_nam}}\n", 2, "user_nam user_name"),
    (FACTS, ALL, "\n\nx {{user_name\n", 3, ""),
    (LEAVES, ALL, " \n", 1, ""),
    (LEAVES, ALL, "x" * 70_000, None, ""),
    ("personas/host.md", ALL, "a\nb\x00", 2, ""),
]
RULES: list[Mistake] = [
    (TEA, "    do:", "    doo: 1\n    do:", 18, "doo do"),
    (TEA, "after_tool_call", "after_tool", 14, "after_tool after_tool_call"),
    (TEA, "require_hitl", "require_hitt", 18, "require_hitt require_hitl"),
    (TEA, "tool: steep", "tols: steep", 16, "tols tool"),
    (TEA, "tool: steep", "tool: step", 16, "step steep"),
    (TEA, "tool: steep", "tool: []", 16, ""),
    (TEA, "tool: steep", "capability: 'tea.[ab]'", 16, "capability"),
    (TEA, "tool: steep", "counter: {name: iterations, at_least: 3}", 16, "iterations iteration"),
    (TEA, "tool: steep", "counter: {name: iteration, at_last: 3}", 16, "at_last at_least"),
    (TEA, "equals:", "equal:", 17, "equal equals"),
    (TEA, "equals: ok", "at_least: much", 17, "result.at_least"),
    (TEA, ", equals: ok", "", 17, "one_of"),
    (TEA, "{path: status, ", "{", 17, ""),
    (TEA, "on: after", "on: before", 17, ""),
    (TEA, "    checkpoint: b", "    checkpoint: d", 19, "defore_serving"),
    (TEA, "do: require_hitl", "do: abort", 19, ""),
    (TEA, "rules:\n  -", "rules:\n   ", 12, "rules"),
]
BLOCKS: list[Mistake] = [
    (BLOCK, ALL, "y = 1\nx = (\n", 2, ""),
    (BLOCK, ALL, "x = 1\nx = 2\n", 1, ""),
    (BLOCK, ALL, "async def run(leaf, data): ...\n", 1, ""),
    (BLOCK, "def run(leaf: str, ", "def run(", 4, "leaf"),
    (BLOCK, ", data: dict[str, Any])", ")", 4, "data"),
    (BLOCK, "leaf: str, ", "leaf: str, sugar: int, ", 4, "sugar"),
    (BLOCK, "leaf: str, ", "leaf: str, /, ", 4, "leaf"),
    (BLOCK, ", data", ",\n*, pot: str, data", 5, "pot"),
    (BLOCK, ALL, "import json\nimport _thread\n{}\n", 2, "_thread"),
    (BLOCK, ALL, "from json import _x\n{}\n", 1, "_x"),
    (BLOCK, ALL, "import json\nfrom . import x\n", 2, ""),
    (BLOCK, ALL, "x = ().__class__\n{}\n", 1, "__class__"),
    (BLOCK, ALL, "x = given._secret\n{}\n", 1, "_secret"),
    (BLOCK, ALL, "x = __import__('os')\n{}\n", 1, "__import__"),
    (BLOCK, ALL, "class A: pass\n{}\n", 1, "A"),
    (BLOCK, "def run(", "while True:\n    pass\n\n\ndef run(", 4, ""),
    (BLOCK, "def run(", "print(1)\n\n\ndef run(", 4, ""),
    (BLOCK, "def run(", "for x in []:\n    pass\ndef run(", 4, ""),
    (BLOCK, "def run(", "try:\n    x = 1\nfinally:\n    x = 2\ndef run(", 4, ""),
    (BLOCK, "def run(", "x = 1\nx += 1\ndef run(", 5, ""),
    (BLOCK, ALL, "y = 1\nx = '\\d'\n", 2, ""),
    (BLOCK, ALL, "y = 1\nx = " + "(" * 300 + ")" * 300, 2, ""),
    (CARD, "llm_visible: true\n", "", 1, "llm_visible"),
    (CARD, "capability: tea.steep", "effect: keyed", 3, "keyed"),
    (CARD, "capability: tea.steep", "risk: huge", 3, "huge"),
    (CARD, "    leaf: {", "    green leaf: {", 7, "green leaf"),
    (CARD, "    leaf: {", "    class: {", 7, "class"),
    (CARD, "tea.steep", "tea.*", 3, ""),
    (CARD, "[leaves]", "[leafs]", 14, "leafs leaves"),
    (CARD, "{type: string}", "{type: sting}", 7, "sting"),
    (CARD, "{type: string}", "{pattern: '('}", 7, ""),
    (CARD, "output:\n  type: object", "output:\n  type: array", 10, "output"),
    (CARD, "{type: string}", "{$ref: '#/$defs/leaf'}", 7, "#/$defs/leaf"),
    (CARD, "{type: string}", "{$ref: 'https://example.org/x'}", 7, "https://example.org/x"),
    (CARD, "    leaf: {", "    data: {", 7, "data"),
    (CARD, "needs: [leaves]", "examples: [{inputs: {}}]", 14, "inputs input"),
    (CARD, "needs: [leaves]", "examples: [{output: {}}]", 14, ""),
    (CARD, "needs: [leaves]", "examples: {}", 14, "examples"),
    (CARD, "input:\n", "input:\n  $ref: '#'\n", 4, "input"),
]
TABLES: list[Mistake] = [
    (DATA, ALL, '{\n"rows": ]}', 2, ""),
    (DATA, ALL, '{"rows": []}', 1, "_about"),
    (DATA, ALL, "[1]", 1, "_about"),
    (DATA, ALL, '{"_about": "x", "a": NaN}', None, ""),
    (DATA, ALL, '{"_about": "x", "_about": "y"}', None, "_about"),
    (DATA, ALL, '{"_about": "x", "a": "\\u0000"}', None, ""),
    (DATA, ALL, '{"_about": "x", "a": ' + "[" * 70 + "]" * 70 + "}", None, ""),
    (DATA, ALL, '{"_about": "x", "a": ' + "[" * 100_000 + "]" * 100_000 + "}", None, ""),
]
MISTAKES = FRONT + BODY + BESIDE + RULES + BLOCKS + TABLES


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
