"""One mistake each in the app of skill_app.py: which file, what is written instead of what, the line and the words."""

from tests.unit.apps.skill_app import FILES

TEA = "skills/tea/SKILL.md"
CARD = "skills/tea/blocks/steep.yaml"
BLOCK = "skills/tea/blocks/steep.py"
FACTS = "skills/tea/templates/facts.md"
LEAVES = "skills/tea/artifacts/leaves.md"
DATA = "data/leaves.json"
UNSTORABLE = "holds a NUL or half a character, which cannot be stored"
ALL = None
"""Instead of the whole file."""

Mistake = tuple[str, str | None, str, int | None, str]

FRONT: list[Mistake] = [
    (TEA, "id: tea", "id: coffee", 2, "the id is 'coffee', the name of its folder 'tea'"),
    (TEA, "triggers:", "trigers:", 5, "unknown field 'trigers'; did you mean 'triggers'?"),
    (TEA, "name: Tea making", "name: 7", 3, "name: Input should be a valid string"),
    (TEA, "name: Tea making\n", "", 2, "name: Field required"),
    (TEA, "for a leaf.", "for\n\n  a leaf.", 4, "description: must be one line"),
    (TEA, "persona: host", "persona: hst", 7, "unknown persona: there is no personas/hst.md; did you mean 'host'?"),
    (TEA, "[water]", "[watr]", 8, "unknown skill 'watr': there is no skills/watr; did you mean 'water'?"),
    (TEA, "[water]", "[water, water]", 8, "dependencies: given twice"),
    (TEA, "[brew, kettle]", '["a\\0b"]', 5, f"triggers.0 {UNSTORABLE}"),
    (TEA, "[drinks]", '["\\ud800"]', 6, f"domain_tags.0 {UNSTORABLE}"),
    (TEA, "[drinks]", "[2026-01-01]", 6, "domain_tags.0 is a date, which JSON does not have; put it in quotes"),
    (
        TEA,
        "[before_serving]",
        "[{name: x, go_no: 1}]",
        11,
        "unknown field 'go_no'; known: go_on_when_unavailable",
    ),
    (TEA, "[before_serving]", "[before_serving, before_serving]", 11, "checkpoints: given twice"),
    (TEA, "[before_serving]", "[7]", 11, "checkpoints.0: Input should be a valid dictionary or instance of Check"),
    (TEA, "id: tea\n", "id: tea\nid: tea\n", 3, "the key 'id' is given twice"),
    (TEA, "---\nid", "id", 1, "must begin with a line of --- and the fields of the skill under it"),
    (TEA, ALL, "---\nid: tea\n", 1, "the fields that begin here are never ended by a second line of ---"),
    (TEA, ALL, "---\n- tea\n---\n", 2, "must be a list of fields with their values"),
    (TEA, "[brew, kettle]", "[brew", 6, "is not YAML here: expected ',' or ']', but got ':'"),
    (TEA, "One", "\x00", 31, "holds a NUL, which cannot be stored"),
    (
        TEA,
        "for a leaf",
        "for a leaf " * 40,
        4,
        "the skill's entry in the manifest has about 130 tokens, more",
    ),
]
BODY: list[Mistake] = [
    (TEA, "## Requirements", "## Needs", 23, "the section '## Requirements' is missing"),
    (TEA, "- A leaf.\n", "", 27, "the section 'Requirements' is empty"),
    (TEA, "## Requirements", "## steps", 27, "the section 'steps' is there twice"),
    (TEA, "## Steps", "## Description\nx\n## Steps", 23, "the engine writes the section 'Description' itself"),
    (TEA, "## Requirements", "```\n## Requirements\n```", 23, "the section '## Requirements' is missing"),
    (TEA, "A leaf", "A leaf " * 1000, 23, "the body has about 1775 tokens, more than the 800 that it should have and"),
]
BESIDE: list[Mistake] = [
    (TEA, "[facts.md]", "[fact.md]", 9, "there is no templates/fact.md; did you mean 'facts.md'?"),
    (TEA, "[facts.md]", "[../SKILL.md]", 9, "there is no templates/../SKILL.md; known: facts.md"),
    (TEA, "[leaves.md]", "[leaves.md, leaves.md]", 10, "leaves.md is given twice"),
    (FACTS, ALL, "Hello\n{{user_nam}}\n", 2, "unknown variable 'user_nam'; did you mean 'user_name'?"),
    (FACTS, ALL, "\n\nx {{user_name\n", 3, "a {{ that is never closed"),
    (LEAVES, ALL, " \n", 1, "is empty"),
    (LEAVES, ALL, "x" * 70_000, None, "has 70,000 bytes, more than the 65,536 that it may have"),
    ("personas/host.md", ALL, "a\nb\x00", 2, "holds a NUL, which cannot be stored"),
]
RULES: list[Mistake] = [
    (TEA, "    do:", "    doo: 1\n    do:", 18, "unknown field 'doo'; did you mean 'do'?"),
    (TEA, "after_tool_call", "after_tool", 14, "unknown trigger 'after_tool'; did you mean 'after_tool_call'?"),
    (TEA, "require_hitl", "require_hitt", 18, "unknown action 'require_hitt'; did you mean 'require_hitl'?"),
    (TEA, "tool: steep", "tols: steep", 16, "unknown condition 'tols'; did you mean 'tool'?"),
    (TEA, "tool: steep", "tool: step", 16, "unknown tool 'step'; did you mean 'steep'?"),
    (TEA, "tool: steep", "tool: []", 16, "tool: must be a tool's name, or a list of them"),
    (TEA, "tool: steep", "capability: 'tea.[ab]'", 16, "capability: must be a capability with * and ? as wildcards"),
    (
        TEA,
        "tool: steep",
        "counter: {name: iterations, at_least: 3}",
        16,
        "counter.name: unknown counter 'iterations'; did you mean 'iteration'?",
    ),
    (
        TEA,
        "tool: steep",
        "counter: {name: iteration, at_last: 3}",
        16,
        "counter.at_last: unknown field 'at_last'; did you mean 'at_least'?",
    ),
    (TEA, "equals:", "equal:", 17, "result.equal: unknown field 'equal'; did you mean 'equals'?"),
    (TEA, "equals: ok", "at_least: much", 17, "result.at_least: is not a number"),
    (TEA, ", equals: ok", "", 17, "result: needs exactly one of equals, one_of, at_least, at_most"),
    (TEA, "{path: status, ", "{", 17, "result.path: must be names and list positions with dots between them"),
    (TEA, "on: after", "on: before", 17, "there is no result before the call; ask on: after_tool_call"),
    (
        TEA,
        "    checkpoint: b",
        "    checkpoint: d",
        19,
        "'defore_serving' is not among the skill's checkpoints; did you",
    ),
    (TEA, "do: require_hitl", "do: abort", 19, "a rule that aborts opens no checkpoint"),
    (TEA, "rules:\n  -", "rules:\n   ", 12, "must be a list of rules, each with id, on, when and do"),
]
BLOCKS: list[Mistake] = [
    (BLOCK, ALL, "x = (\n", 1, "is not Python: '(' was never closed"),
    (BLOCK, ALL, "x = 1\nx = 2\n", 1, "defines no function run: its parameters are the input, what it returns is"),
    (BLOCK, ALL, "async def run(leaf, data): ...\n", 1, "defines no function run"),
    (BLOCK, "def run(leaf: str, ", "def run(", 4, "run has no parameter leaf, which the input has"),
    (BLOCK, ", data: dict[str, Any])", ")", 4, "run has no parameter data, which the input has"),
    (BLOCK, "leaf: str, ", "leaf: str, sugar: int, ", 4, "run needs sugar, which the input has not: give it a default"),
    (BLOCK, "leaf: str, ", "leaf: str, /, ", 4, "run has no parameter leaf, which the input has"),
    (BLOCK, ", data", ",\n*, pot: str, data", 5, "run needs pot, which the input has not: give it a default"),
    (BLOCK, ALL, "import json\nimport _thread\n{}\n", 2, "imports _thread, which begins with an underscore"),
    (BLOCK, ALL, "from json import _x\n{}\n", 1, "imports _x, which begins with an underscore"),
    (BLOCK, ALL, "from . import x\n{}\n", 1, "a block has no package to import from"),
    (BLOCK, ALL, "x = ().__class__\n{}\n", 1, "uses __class__, which begins with underscores"),
    (BLOCK, ALL, "x = given._secret\n{}\n", 1, "uses _secret, which begins with an underscore"),
    (BLOCK, ALL, "x = __import__('os')\n{}\n", 1, "uses __import__, which begins with underscores"),
    (BLOCK, ALL, "class A: pass\n{}\n", 1, "defines the class A: a block has functions and plain values only"),
    (BLOCK, "def run(", "while True:\n    pass\n\n\ndef run(", 4, "stands outside of any function, so each call would"),
    (BLOCK, "def run(", "print(1)\n\n\ndef run(", 4, "stands outside of any function, so each call would run it"),
    (BLOCK, "def run(", "for x in []:\n    pass\ndef run(", 4, "stands outside of any function, so each call would"),
    (BLOCK, "def run(", "try:\n    x = 1\nfinally:\n    x = 2\ndef run(", 4, "stands outside of any function"),
    (BLOCK, "def run(", "x = 1\nx += 1\ndef run(", 5, "stands outside of any function, so each call would run it"),
    (BLOCK, ALL, "x = '\\d'\n{}\n", 1, "is not Python: invalid escape sequence '\\d'"),
    (BLOCK, ALL, "x = " + "(" * 300 + ")" * 300, 1, "is not Python: too many nested parentheses"),
    (CARD, "llm_visible: true\n", "", 1, "llm_visible: Field required"),
    (CARD, "capability: tea.steep", "effect: keyed", 3, "'keyed' is no effect of a block; it is read or local"),
    (CARD, "capability: tea.steep", "risk: huge", 3, "'huge' is no risk; it is low, medium or high"),
    (
        CARD,
        "    leaf: {",
        "    green leaf: {",
        7,
        "'green leaf' can be no parameter of run; name the property otherwise",
    ),
    (CARD, "    leaf: {", "    class: {", 7, "'class' can be no parameter of run; name the property otherwise"),
    (CARD, "tea.steep", "tea.*", 3, "capability: letters, digits, and _ . : - between them"),
    (CARD, "[leaves]", "[leafs]", 14, "unknown table 'leafs': there is no data/leafs.json; did you mean 'leaves'?"),
    (CARD, "{type: string}", "{type: sting}", 7, "input.properties.leaf.type is no JSON Schema: 'sting' is not valid"),
    (CARD, "{type: string}", "{pattern: '('}", 7, "input.properties.leaf.pattern is no JSON Schema: '(' is not a 'reg"),
    (CARD, "output:\n  type: object", "output:\n  type: array", 10, "output must be of type: object"),
    (
        CARD,
        "{type: string}",
        "{$ref: '#/$defs/leaf'}",
        7,
        "the reference '#/$defs/leaf' leads nowhere within the schema",
    ),
    (
        CARD,
        "{type: string}",
        "{$ref: 'https://example.org/x'}",
        7,
        "the reference 'https://example.org/x' leads nowhere",
    ),
    (CARD, "    leaf: {", "    data: {", 7, 'tables are handed in as "data"; name the property otherwise'),
    (CARD, "needs: [leaves]", "examples: [{inputs: {}}]", 14, "unknown field 'inputs'; did you mean 'input'?"),
    (CARD, "needs: [leaves]", "examples: [{output: {}}]", 14, "examples.0.input: Field required"),
    (CARD, "needs: [leaves]", "examples: {}", 14, "examples: Input should be a valid tuple"),
    (CARD, "input:\n", "input:\n  $ref: '#'\n", 4, "input refers to itself without end"),
]
TABLES: list[Mistake] = [
    (DATA, ALL, '{\n"rows": ]}', 2, "is not JSON here: Expecting value"),
    (DATA, ALL, '{"rows": []}', 1, 'needs "_about": a text that says what the data is, and whether it is made up'),
    (DATA, ALL, "[1]", 1, 'must be one JSON object, with "_about" beside the data'),
    (DATA, ALL, '{"_about": "x", "a": NaN}', None, "a is a number that is not finite, which cannot be stored"),
    (DATA, ALL, '{"_about": "x", "_about": "y"}', None, "the name '_about' is given twice in one object"),
    (DATA, ALL, '{"_about": "x", "a": "\\u0000"}', None, f"a {UNSTORABLE}"),
    (DATA, ALL, '{"_about": "x", "a": ' + "[" * 70 + "]" * 70 + "}", None, "a.0.0.0.0.0"),
    (
        DATA,
        ALL,
        '{"_about": "x", "a": ' + "[" * 100_000 + "]" * 100_000 + "}",
        None,
        "cannot be read: maximum recursion",
    ),
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
    """How the problem must begin."""
    path, _, _, line, words = mistake
    return f"{path}:{line}: {words}" if line else f"{path}: {words}"
