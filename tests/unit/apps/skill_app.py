"""A small app with everything that a skill can have; tests spoil one thing of it at a time, and find its problems."""

from collections.abc import Sequence
from pathlib import Path

from perdure.apps import App

SKILL = """---
id: tea
name: Tea making
description: Finds the right brew for a leaf.
triggers: [brew, kettle]
domain_tags: [drinks]
persona: host
dependencies: [water]
templates: [facts.md]
artifacts: [leaves.md]
checkpoints: [before_serving]
rules:
  - id: serving
    on: after_tool_call
    when:
      tool: steep
      result: {path: status, equals: ok}
    do: require_hitl
    checkpoint: before_serving
    message: A person tastes first.
---

## Steps
1. Ask for the leaf.
2. Call steep.

## Requirements
- A leaf.

## Output format
One sentence.
"""
WATER = """---
id: water
name: Water
description: Heats water to a temperature.
persona: plumber
---
## Steps
Heat it.
## Requirements
None.
## Output format
The temperature.
"""
STEEP_CARD = """description: How long a leaf steeps.
llm_visible: true
capability: tea.steep
input:
  type: object
  properties:
    leaf: {type: string}
  required: [leaf]
output:
  type: object
  properties:
    minutes: {type: number, exclusiveMinimum: 0}
  required: [minutes]
needs: [leaves]
"""
STEEP = """from typing import Any


def run(leaf: str, data: dict[str, Any]) -> dict[str, Any]:
    rows = [row for row in data["leaves"]["rows"] if row["leaf"] == leaf]
    return {"minutes": rows[0]["minutes"] if rows else 3}
"""
FILES = {
    "app.yaml": "name: parlour\ntitle: Parlour\nreserved: [old_kettle]\n",
    "agents/host.yaml": "id: host\ntitle: Host\ntopology: skill_pipeline\nroot_skill: tea\n"
    "fallback_model: openai/small\nday_limits: {max_tokens: 1000}\n",
    "skills/tea/SKILL.md": SKILL,
    "skills/tea/templates/facts.md": "Dear {{ user_name }},\nleaves come from a bush.\n",
    "skills/tea/artifacts/leaves.md": "# Leaves\nGreen and black.\n", "skills/tea/blocks/steep.yaml": STEEP_CARD,
    "skills/tea/blocks/steep.py": STEEP, "skills/water/SKILL.md": WATER,
    "personas/host.md": "You are the host of a tea house.\n", "personas/plumber.md": "You are a plumber.\n",
    "rules/house.yaml": "- id: no_batches\n  on: before_tool_call\n  when: {capability: 'batch_*'}\n  do: abort\n",
    "data/leaves.json": '{"_about": "Made up.", "rows": [{"leaf": "green", "minutes": 2}]}\n',
}  # fmt: skip


def write_app(folder: Path, changes: dict[str, str | None] | None = None) -> Path:
    """The app in `folder`; `changes` are whole files by path, None leaves one out."""
    for path, text in {**FILES, **(changes or {})}.items():
        if text is not None:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
    return folder


def problems_of(app: App) -> list[str]:
    """The problems, with paths inside the app folder."""
    return [str(problem).replace(f"{app.folder}/", "") for problem in app.problems]


def is_at(problem: str, expected: str) -> bool:
    """Returns whether a problem has this place and names all this data: `path:line name name`."""
    place, *data = expected.split()
    return problem.startswith(f"{place}: ") and all(each in problem for each in data)


def are_at(problems: Sequence[str], expected: Sequence[str]) -> bool:
    return len(problems) == len(expected) and all(map(is_at, problems, expected))
