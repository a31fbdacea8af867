"""The filings app's code blocks, run as the engine runs them: schema in, `run`, schema out."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from pydantic_monty import MontySession

FILINGS = Path(__file__).parents[4] / "perdure" / "examples" / "filings"
STUBS = "from typing import Any\ngiven: dict[str, Any] = {}\n"
"""The type of the tables that a block gets, for the type checker."""


@dataclass(frozen=True, slots=True)
class Block:
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
    paths = sorted(FILINGS.glob("skills/*/blocks/*.py"))
    return {path.stem: _block(path) for path in paths}


def _block(path: Path) -> Block:
    card = yaml.safe_load(path.with_suffix(".yaml").read_text())
    return Block(path.stem, path.parents[1].name, path.read_text(), card)


@cache
def _table(name: str) -> str:
    return (FILINGS / "data" / f"{name}.json").read_text()


def table(name: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(_table(name))
    return read


def rows(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table(name)["rows"]
    return found


def handed_in(block: Block, args: Mapping[str, Any], data: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The arguments of `run`, checked, and the tables that the block needs, some of them replaced."""
    Draft202012Validator(block.card["input"]).validate(args)
    needs = block.card.get("needs", ())
    tables = {name: {"_about": "", "rows": data[name]} if name in data else table(name) for name in needs}
    return {**args, "data": tables} if needs else {**args}


def run(name: str, args: Mapping[str, Any], **data: list[dict[str, Any]]) -> dict[str, Any]:
    """The result of a block in Python, which its schema allows; `data` replaces rows of tables."""
    block = blocks()[name]
    return _allowed(block, _function(name)(**handed_in(block, args, data)))


def run_in_monty(session: MontySession, name: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """The same in a session of the sandbox's interpreter, which checks its types first."""
    block = blocks()[name]
    return _allowed(
        block, session.feed_run(f"{block.source}\nrun(**given)", inputs={"given": handed_in(block, args, {})})
    )


@cache
def _function(name: str) -> Callable[..., Any]:
    scope: dict[str, Any] = {}
    exec(compile(blocks()[name].source, name, "exec"), scope)
    function: Callable[..., Any] = scope["run"]
    return function


def _allowed(block: Block, result: Any) -> dict[str, Any]:
    assert json.loads(json.dumps(result, allow_nan=False)) == result, "a result is plain JSON"
    Draft202012Validator(block.card["output"]).validate(result)
    checked: dict[str, Any] = result
    return checked


def examples() -> list[tuple[str, dict[str, Any]]]:
    return [(block.name, example) for block in blocks().values() for example in block.examples]
