"""The filings app's code blocks, run as the engine runs them: schema in, script, schema out."""

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from pydantic_monty import MontySession

FILINGS = Path(__file__).parents[4] / "apps" / "filings"
STUBS = "from typing import Any\ninputs: dict[str, Any] = {}\n"
"""What a type checker is told of what the engine hands in."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block as its two files say it."""

    name: str
    skill: str
    source: str
    card: Mapping[str, Any]

    @property
    def examples(self) -> list[dict[str, Any]]:
        examples: list[dict[str, Any]] = self.card["input"]["examples"]
        return examples


@cache
def blocks() -> dict[str, Block]:
    """By name."""
    paths = sorted(FILINGS.glob("skills/*/blocks/*.py"))
    return {path.stem: _block(path) for path in paths}


def _block(path: Path) -> Block:
    card = yaml.safe_load(path.with_suffix(".yaml").read_text())
    return Block(path.stem, path.parents[1].name, path.read_text(), card)


@cache
def _table(name: str) -> str:
    return (FILINGS / "data" / f"{name}.json").read_text()


def table(name: str) -> dict[str, Any]:
    """A fresh copy of a table of the app."""
    read: dict[str, Any] = json.loads(_table(name))
    return read


def rows(name: str) -> list[dict[str, Any]]:
    """The rows of a table of the app."""
    found: list[dict[str, Any]] = table(name)["rows"]
    return found


def handed_in(block: Block, args: Mapping[str, Any], data: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """`inputs` of a run: the arguments, checked, and the tables that the block needs, some of them replaced."""
    Draft202012Validator(block.card["input"]).validate(args)
    tables = {name: {"_about": "", "rows": data[name]} if name in data else table(name) for name in block.card["needs"]}
    return {**args, "data": tables}


def run(name: str, args: Mapping[str, Any], **data: list[dict[str, Any]]) -> dict[str, Any]:
    """The result of a block in Python, which its schema allows; `data` replaces rows of tables."""
    block = blocks()[name]
    first, last = _compiled(name)
    scope: dict[str, Any] = {"inputs": handed_in(block, args, data)}
    exec(first, scope)
    return _allowed(block, eval(last, scope))


def run_in_monty(session: MontySession, name: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """The same in a session of the sandbox's interpreter, which checks its types first."""
    block = blocks()[name]
    return _allowed(block, session.feed_run(block.source, inputs={"inputs": handed_in(block, args, {})}))


@cache
def _compiled(name: str) -> tuple[CodeType, CodeType]:
    tree = ast.parse(blocks()[name].source)
    last = tree.body.pop()
    assert isinstance(last, ast.Expr), "the last statement of a block is its result"
    return compile(tree, name, "exec"), compile(ast.Expression(last.value), name, "eval")


def _allowed(block: Block, result: Any) -> dict[str, Any]:
    assert json.loads(json.dumps(result, allow_nan=False)) == result, "a result is plain JSON"
    Draft202012Validator(block.card["output"]).validate(result)
    checked: dict[str, Any] = result
    return checked


def examples() -> list[tuple[str, dict[str, Any]]]:
    """Every example of every block's input."""
    return [(block.name, example) for block in blocks().values() for example in block.examples]
