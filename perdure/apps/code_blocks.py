"""The code blocks of a skill: `blocks/<name>.py`, which defines `run`, with its schemas in `blocks/<name>.yaml`."""

import ast
import json
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from pathlib import Path

from pydantic import Field, JsonValue

from perdure.apps.files import (
    AppProblem,
    Place,
    YamlFile,
    did_you_mean,
    has_mistakes,
    read_form,
    read_text,
    read_yaml,
    schema_mistakes,
)
from perdure.contracts.skills import SKILL_ID_PATTERN, CodeBlock, DataTable
from perdure.contracts.values import Frozen

_VALUE_NODES = ast.Assign | ast.AnnAssign | ast.Pass
_COMPUTED_NODES = ast.Call | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp | ast.BinOp | ast.Subscript
_TOP_LEVEL_EFFECT = (
    "is outside any function, so each call would run it; move it into `run` or into a function that `run` calls"
)
_MAX_SHOWN_CHARACTERS = 120
_NAME = re.compile(SKILL_ID_PATTERN)
_EFFECTS = ("read", "local")
_RISKS = ("", "low", "medium", "high")


@dataclass(frozen=True, slots=True)
class BlockFault:
    """One mistake of a block."""

    line: int | None
    """Line of its source, from 1."""
    message: str


BlockCheck = Callable[[CodeBlock], Sequence[BlockFault]]
"""Returns the mistakes of a block; empty if it can run."""


def schema_as_called(block: CodeBlock) -> dict[str, JsonValue]:
    """Returns the schema of `run`'s arguments: the input, and also `data` if the block needs tables."""
    if not block.needs:
        return block.input
    properties, required = block.input.get("properties"), block.input.get("required")
    data: JsonValue = {"type": "object"}
    return {
        **block.input,
        "properties": {**(properties if isinstance(properties, dict) else {}), "data": data},
        "required": [*(required if isinstance(required, list) else []), "data"],
    }


def check_source(block: CodeBlock) -> list[BlockFault]:
    """The check without a sandbox's own: the source compiles, uses only the subset, and `run` accepts the input. These
    checks are for clear messages, not for safety: the sandbox confines a block. A sandbox's own type checker is called
    through `Engine.check_block`."""
    tree = _compile(block.source)
    if isinstance(tree, BlockFault):
        return [tree]
    return _by_line([*_subset_faults(tree), *_run_faults(tree, schema_as_called(block))])


def check_source_without_card(source: str) -> list[BlockFault]:
    """Does the same without the checks that need a card, so that the source's mistakes are reported even if the card
    has some."""
    tree = _compile(source)
    return [tree] if isinstance(tree, BlockFault) else _by_line(_subset_faults(tree))


def _compile(source: str) -> ast.Module | BlockFault:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # compiler warnings count as mistakes
            tree = ast.parse(source)
            compile(tree, "block", "exec", dont_inherit=True)
    except SyntaxError as error:
        return BlockFault(error.lineno, f"is not valid Python: {error.msg}")
    except (ValueError, RecursionError, MemoryError) as error:
        return BlockFault(None, f"cannot be compiled: {error}")
    return tree


def _subset_faults(tree: ast.Module) -> list[BlockFault]:
    faults = [fault for node in ast.walk(tree) for fault in _node_faults(node)]
    return faults + [BlockFault(node.lineno, _TOP_LEVEL_EFFECT) for node in tree.body if _has_top_level_effect(node)]


def _by_line(faults: Sequence[BlockFault]) -> list[BlockFault]:
    return sorted(faults, key=lambda fault: fault.line or 0)


def first_computed_line(source: str) -> int | None:
    """Returns the line of the first top-level value of a block that is not a literal, or None."""
    for node in ast.parse(source).body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if value is not None and any(isinstance(part, _COMPUTED_NODES) for part in ast.walk(value)):
            return node.lineno
    return None


def _has_top_level_effect(node: ast.stmt) -> bool:
    """Returns whether a top-level statement has an effect. Only imports, functions and values are allowed."""
    match node:
        case ast.Expr(value=ast.Constant()):  # a docstring, or ...
            return False
        case ast.ClassDef():  # reported separately
            return False
    return not isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | _VALUE_NODES)


def _node_faults(node: ast.AST) -> Iterator[BlockFault]:
    match node:
        case ast.Import(names=names):
            modules = [alias.name for alias in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            if level:
                yield BlockFault(node.lineno, "a block cannot use relative imports")
            modules = [module or "", *(alias.name for alias in names)]
        case ast.Attribute(attr=name) | ast.Name(id=name) | ast.arg(arg=name) if name.startswith("__"):
            yield BlockFault(node.lineno, f"uses {name}; names that start with two underscores are not allowed")
            return
        case ast.Attribute(attr=name) if name.startswith("_"):
            yield BlockFault(node.lineno, f"uses {name}; names that start with an underscore are not allowed")
            return
        case ast.ClassDef(name=name):
            yield BlockFault(
                node.lineno, f"defines the class {name}; a block can contain only functions and plain values"
            )
            return
        case _:
            return
    for module in modules:
        if any(part.startswith("_") for part in module.split(".")):
            yield BlockFault(node.lineno, f"imports {module}; names that start with an underscore are not allowed")


def _run_faults(tree: ast.Module, schema: dict[str, JsonValue]) -> Iterator[BlockFault]:
    """Returns why the last `run` of the source cannot be called with arguments that match the schema."""
    run = next((node for node in reversed(tree.body) if isinstance(node, ast.FunctionDef) and node.name == "run"), None)
    if run is None:
        yield BlockFault(
            1,
            ("does not define the function `run`, whose parameters are the input and whose return value is the result"),
        )
        return
    properties, required = schema.get("properties"), schema.get("required")
    input_names = {*properties} if isinstance(properties, dict) else set()
    required_names = {*map(str, required)} if isinstance(required, list) else set()
    always_given = input_names & required_names
    signature = run.args
    parameter_names = {parameter.arg for parameter in (*signature.args, *signature.kwonlyargs)}
    if signature.kwarg is None:
        for name in sorted((input_names | required_names) - parameter_names):
            yield BlockFault(run.lineno, f"`run` has no parameter {name}, which is in the input")
    positional = [*signature.posonlyargs, *signature.args]
    mandatory = positional[: len(positional) - len(signature.defaults)]
    mandatory += [
        parameter
        for parameter, default in zip(signature.kwonlyargs, signature.kw_defaults, strict=True)
        if default is None
    ]
    for parameter in mandatory:
        if parameter in signature.posonlyargs:
            yield BlockFault(
                parameter.lineno,
                (f"`run` is called with keyword arguments, so its parameter {parameter.arg} cannot be positional-only"),
            )
        elif parameter.arg not in always_given:
            reason = "may omit" if parameter.arg in input_names else "does not have"
            yield BlockFault(
                parameter.lineno, f"`run` requires {parameter.arg}, which the input {reason}; add a default"
            )


class ExampleForm(Frozen):
    """An entry under `examples:` of a card. Entries under `input.examples` are only inputs."""

    input: dict[str, JsonValue]
    output: dict[str, JsonValue] | None = None
    """The expected result of `run`; if omitted, any result that matches the schema."""


@dataclass(frozen=True, slots=True)
class ExampleRun:
    """The result of one run."""

    value: JsonValue = None
    fault: str = ""
    """The reason for a missing value; empty if there is a value."""
    line: int | None = None
    """The line of the block, if the fault has one."""
    timed_out: bool = False
    """The run reached its time limit; further examples would too."""


RunExample = Callable[[CodeBlock, Mapping[str, JsonValue], Mapping[str, JsonValue]], ExampleRun | None]
"""Runs a block once with these inputs and these tables by name. None means that nothing can run here."""


def example_mistakes(
    block: CodeBlock,
    examples: Sequence[ExampleForm],
    tables: Mapping[str, JsonValue],
    card: YamlFile,
    run_example: RunExample,
) -> Iterator[AppProblem]:
    """Returns the mistakes of the examples of an otherwise valid block, each with its line of the card. Each example
    runs, and its result must equal the stated one, if any. Only a command that checks an app runs them; a worker that
    loads it does not."""
    inputs_only = block.input.get("examples")
    entries: list[tuple[Place, JsonValue, JsonValue]] = [
        (("input", "examples", index), inputs, None)
        for index, inputs in enumerate(inputs_only if isinstance(inputs_only, list) else ())
    ]
    entries += [(("examples", index), example.input, example.output) for index, example in enumerate(examples)]
    for place, inputs, expected in entries:
        if not isinstance(inputs, dict):
            yield card.problem(place, "an example must be an object with the fields of the input")
            continue
        run = run_example(block, inputs, tables)
        if run is None:
            return
        if run.fault:
            where = f" ({block.name}.py:{run.line})" if run.line else ""
            yield card.problem(place, f"the example raises an error: {run.fault}{where}")
        elif expected is not None and (mismatch := difference(run.value, expected)) is not None:
            yield card.problem((*place, "output"), f"the example returns a different value: {mismatch}")
        if run.timed_out:
            return


def difference(value: JsonValue, expected: JsonValue, place: str = "") -> str | None:
    """Returns the first place at which two JSON values differ, in words. 2 and 2.0 are equal; 1 and true are not."""
    if isinstance(value, dict) and isinstance(expected, dict):
        for name in (*expected, *value):
            path = f"{place}.{name}" if place else name
            if name not in value or name not in expected:
                return f"{path} is {'missing' if name not in value else 'unexpected'}"
            if (inner_difference := difference(value[name], expected[name], path)) is not None:
                return inner_difference
        return None
    if isinstance(value, list) and isinstance(expected, list):
        if len(value) != len(expected):
            return f"{place} has {len(value)} items, not {len(expected)}"
        differences = (
            difference(*pair, f"{place}.{index}") for index, pair in enumerate(zip(value, expected, strict=True))
        )
        return next((inner_difference for inner_difference in differences if inner_difference is not None), None)
    if value == expected and isinstance(value, bool) is isinstance(expected, bool):
        return None
    return f"{place} is {_shown(value)}, not {_shown(expected)}"


def _shown(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[: _MAX_SHOWN_CHARACTERS - 1]}…"


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
    """Checked only, not published."""


@dataclass(frozen=True, slots=True)
class BlockScope:
    """The environment that a block is checked against."""

    registered: Collection[str]
    """Names of tools of the engine or the app, which no block can have."""
    reserved: Collection[str]
    """Names that are reserved and never offered."""
    tables: Mapping[str, DataTable | None]
    """The app's data tables; None for an invalid one."""
    check: BlockCheck
    run_example: RunExample | None = None
    """Runs its examples; None skips them."""

    def name_fault(self, name: str) -> str | None:
        """Returns why no block can have this name, or None."""
        if not _NAME.fullmatch(name):
            return f"{name!r} is not a valid block name; use lower-case letters, digits and _, and start with a letter"
        if name in self.registered:
            return f"{name} is the name of a registered tool; choose another"
        if name in self.reserved:
            return f"{name} is reserved; choose another"
        return None


def block_names(skill: Path) -> set[str]:
    """Returns the names of the blocks in a skill's folder, including invalid ones."""
    return {path.stem for path in skill.glob("blocks/*.yaml")} | {path.stem for path in skill.glob("blocks/*.py")}


def read_blocks(skill: Path, scope: BlockScope) -> tuple[tuple[CodeBlock, ...], list[AppProblem]]:
    """Returns the valid blocks of a skill's folder, sorted by name, and the mistakes in all of them."""
    blocks: list[CodeBlock] = []
    problems: list[AppProblem] = []
    for name in sorted(block_names(skill)):
        block, mistakes = _read_block(skill / "blocks" / name, scope)
        problems += mistakes
        if block is not None:
            blocks.append(block)
    return tuple(blocks), problems


def _read_block(stem: Path, scope: BlockScope) -> tuple[CodeBlock | None, list[AppProblem]]:
    source_path, card_path = stem.with_name(f"{stem.name}.py"), stem.with_name(f"{stem.name}.yaml")
    for path, other in ((source_path, card_path), (card_path, source_path)):
        if not path.is_file():
            return None, [AppProblem(other, None, f"{path.name} is missing in the same folder")]
    fault = scope.name_fault(stem.name)
    problems = [AppProblem(source_path, 1, fault)] if fault else []
    source = read_text(source_path)
    if isinstance(source, AppProblem):
        problems.append(source)
        source = ""
    card = read_yaml(card_path)
    if not isinstance(card, YamlFile):
        return None, [*problems, *card, *_problems_of(source_path, check_source_without_card(source))]
    form, mistakes = read_form(_BlockForm, card.value, card)
    problems += mistakes
    if isinstance(card.value, dict):
        problems += _card_mistakes(card.value, card, scope)
    if form is None:
        return None, [*problems, *_problems_of(source_path, check_source_without_card(source))]
    if not source or not _NAME.fullmatch(stem.name) or form.effect not in _EFFECTS or form.risk not in _RISKS:
        return None, problems
    block = CodeBlock.model_validate({**form.model_dump(exclude={"examples"}), "name": stem.name, "source": source})
    # the type checker is skipped if there are mistakes already
    check = check_source if has_mistakes(problems) else scope.check
    problems += _problems_of(source_path, check(block))
    if scope.run_example is not None and not has_mistakes(problems):
        tables = {name: table.body for name in block.needs if (table := scope.tables[name]) is not None}
        problems += example_mistakes(block, form.examples, tables, card, scope.run_example)
    return (None, problems) if has_mistakes(problems) else (block, problems)


def _problems_of(path: Path, faults: Sequence[BlockFault]) -> list[AppProblem]:
    return [AppProblem(path, fault.line, fault.message) for fault in faults]


def _card_mistakes(value: dict[str, object], card: YamlFile, scope: BlockScope) -> Iterator[AppProblem]:
    for schema_name in ("input", "output"):
        yield from schema_mistakes(value.get(schema_name), card, (schema_name,))
    effect = value.get("effect", "read")
    if isinstance(effect, str) and effect not in _EFFECTS:
        message = (
            f"{effect!r} is not a valid effect for a block; use read or local, since a sandbox has no access to "
            "external systems"
        )
        yield card.problem(("effect",), message)
    risk = value.get("risk", "")
    if isinstance(risk, str) and risk not in _RISKS:
        yield card.problem(("risk",), f"{risk!r} is not a valid risk; use low, medium or high")
    capability = value.get("capability", "")
    if isinstance(capability, str) and not re.fullmatch(r"[A-Za-z0-9_.:-]*", capability):
        yield card.problem(("capability",), "capability: must have letters and digits, with _ . : or - between them")
    needs = value.get("needs", [])
    input_schema = value.get("input")
    properties = input_schema.get("properties") if isinstance(input_schema, dict) else None
    for name in properties if isinstance(properties, dict) else ():
        location = ("input", "properties", name)
        if not str(name).isidentifier() or iskeyword(str(name)):
            yield card.problem(location, f"{name!r} cannot be a parameter name of `run`; rename the property")
        elif name == "data" and needs:
            yield card.problem(location, '"data" is reserved for tables; rename the property')
    for index, table in enumerate(needs if isinstance(needs, list) else []):
        if isinstance(table, str) and table not in scope.tables:
            hint = did_you_mean(table, scope.tables)
            yield card.problem(("needs", index), f"unknown table {table!r}: data/{table}.json does not exist{hint}")
        elif isinstance(table, str) and scope.tables[table] is None:
            yield card.problem(("needs", index), f"the table {table} is invalid; see its own problems")
