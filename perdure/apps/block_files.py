"""The code blocks of a skill: `blocks/<name>.py`, which defines `run`, beside `blocks/<name>.yaml`, its schemas."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from pathlib import Path

from pydantic import Field, JsonValue

from contracts.frozen import Frozen
from contracts.skills import SKILL_ID_PATTERN, CodeBlock, DataTable
from perdure.apps.block_examples import ExampleForm, Trial, example_mistakes
from perdure.apps.block_source import BlockCheck, BlockFault, check_alone, check_source
from perdure.apps.form import read_form
from perdure.apps.problems import AppProblem, did_you_mean, has_mistakes
from perdure.apps.schemas import schema_mistakes
from perdure.apps.text_file import read_text
from perdure.apps.yaml_file import YamlFile, read_yaml

_NAME = re.compile(SKILL_ID_PATTERN)
_EFFECTS = ("read", "local")
_RISKS = ("", "low", "medium", "high")


class _BlockForm(Frozen):
    description: str = Field(min_length=1)
    llm_visible: bool
    effect: str = "read"
    capability: str = ""
    risk: str = ""
    input: dict[str, JsonValue]
    output: dict[str, JsonValue]
    needs: tuple[str, ...] = ()
    examples: tuple[ExampleForm, ...] = ()
    """Not published: what they say is only checked."""


@dataclass(frozen=True, slots=True)
class BlockScope:
    """What a block is checked against."""

    registered: Collection[str]
    """Names of tools that the engine or the app has, which no block may shadow (S0-50)."""
    reserved: Collection[str]
    """Names that are kept and never offered."""
    tables: Mapping[str, DataTable | None]
    """The app's data tables; None for one with mistakes."""
    check: BlockCheck
    trial: Trial | None = None
    """Runs its examples; None where nobody asks for that."""

    def name_fault(self, name: str) -> str | None:
        """Why no block may have this name; None where it may."""
        if not _NAME.fullmatch(name):
            return f"{name!r} is no name of a block: lower-case letters, digits and _, starting with a letter"
        if name in self.registered:
            return f"{name} is the name of a registered tool, which no block may shadow; choose another"
        if name in self.reserved:
            return f"{name} is a reserved name, which no block may take; choose another"
        return None


def block_names(skill: Path) -> set[str]:
    """The names of the blocks in a skill's folder, whatever is wrong with them."""
    return {path.stem for path in skill.glob("blocks/*.yaml")} | {path.stem for path in skill.glob("blocks/*.py")}


def read_blocks(skill: Path, scope: BlockScope) -> tuple[tuple[CodeBlock, ...], list[AppProblem]]:
    """The blocks of the skill in this folder, by name."""
    blocks: list[CodeBlock] = []
    problems: list[AppProblem] = []
    for name in sorted(block_names(skill)):
        block, found = _read_block(skill / "blocks" / name, scope)
        problems += found
        if block is not None:
            blocks.append(block)
    return tuple(blocks), problems


def _read_block(stem: Path, scope: BlockScope) -> tuple[CodeBlock | None, list[AppProblem]]:
    source_path, card_path = stem.with_name(f"{stem.name}.py"), stem.with_name(f"{stem.name}.yaml")
    for path, other in ((source_path, card_path), (card_path, source_path)):
        if not path.is_file():
            return None, [AppProblem(other, None, f"there is no {path.name} beside it")]
    fault = scope.name_fault(stem.name)
    problems = [AppProblem(source_path, 1, fault)] if fault else []
    source = read_text(source_path)
    if isinstance(source, AppProblem):
        problems.append(source)
        source = ""
    card = read_yaml(card_path)
    if not isinstance(card, YamlFile):
        return None, [*problems, *card, *_told(source_path, check_alone(source))]
    form, mistakes = read_form(_BlockForm, card.value, card)
    problems += mistakes
    if isinstance(card.value, dict):
        problems += _card_mistakes(card.value, card, scope)
    if form is None:
        return None, [*problems, *_told(source_path, check_alone(source))]
    if not source or not _NAME.fullmatch(stem.name) or form.effect not in _EFFECTS or form.risk not in _RISKS:
        return None, problems
    block = CodeBlock.model_validate({**form.model_dump(exclude={"examples"}), "name": stem.name, "source": source})
    check = check_source if has_mistakes(problems) else scope.check  # what is wrong already is worth no type checker
    problems += _told(source_path, check(block))
    if scope.trial is not None and not has_mistakes(problems):
        tables = {name: table.body for name in block.needs if (table := scope.tables[name]) is not None}
        problems += example_mistakes(block, form.examples, tables, card, scope.trial)
    return (None, problems) if has_mistakes(problems) else (block, problems)


def _told(path: Path, faults: Sequence[BlockFault]) -> list[AppProblem]:
    return [AppProblem(path, each.line, each.message) for each in faults]


def _card_mistakes(value: dict[str, object], card: YamlFile, scope: BlockScope) -> Iterator[AppProblem]:
    for side in ("input", "output"):
        yield from schema_mistakes(value.get(side), card, (side,))
    effect = value.get("effect", "read")
    if isinstance(effect, str) and effect not in _EFFECTS:
        why = f"{effect!r} is no effect of a block; it is read or local, for a sandbox reaches nothing outside"
        yield card.problem(("effect",), why)
    risk = value.get("risk", "")
    if isinstance(risk, str) and risk not in _RISKS:
        yield card.problem(("risk",), f"{risk!r} is no risk; it is low, medium or high")
    capability = value.get("capability", "")
    if isinstance(capability, str) and not re.fullmatch(r"[A-Za-z0-9_.:-]*", capability):
        yield card.problem(("capability",), "capability: letters, digits, and _ . : - between them")
    needs = value.get("needs", [])
    given = value.get("input")
    properties = given.get("properties") if isinstance(given, dict) else None
    for name in properties if isinstance(properties, dict) else ():
        here = ("input", "properties", name)
        if not str(name).isidentifier() or iskeyword(str(name)):
            yield card.problem(here, f"{name!r} can be no parameter of run; name the property otherwise")
        elif name == "data" and needs:
            yield card.problem(here, 'tables are handed in as "data"; name the property otherwise')
    for index, table in enumerate(needs if isinstance(needs, list) else []):
        if isinstance(table, str) and table not in scope.tables:
            hint = did_you_mean(table, scope.tables)
            yield card.problem(("needs", index), f"unknown table {table!r}: there is no data/{table}.json{hint}")
        elif isinstance(table, str) and scope.tables[table] is None:
            yield card.problem(("needs", index), f"the table {table} has mistakes")
