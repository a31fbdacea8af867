"""A code block's source against the subset that every sandbox understands, and its `run` against the input schema.

What is refused here is refused for clarity, not for safety: the sandbox is what holds a block. A sandbox's own type
checker is asked through `Engine.check_block`.
"""

import ast
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from contracts.skills import CodeBlock


@dataclass(frozen=True, slots=True)
class BlockFault:
    """One thing that a block may not do."""

    line: int | None
    """In its source, from 1."""
    message: str


_VALUE = ast.Assign | ast.AnnAssign | ast.Pass
_COMPUTES = ast.Call | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp | ast.BinOp | ast.Subscript
_LOOSE = "stands outside of any function, so each call would run it: put it into run, or into a function that run calls"
BlockCheck = Callable[[CodeBlock], Sequence[BlockFault]]
"""What is wrong with a block; nothing where it may run."""


def schema_as_called(block: CodeBlock) -> dict[str, JsonValue]:
    """The schema of what `run` is called with: the input, and `data` beside it where the block needs tables."""
    if not block.needs:
        return block.input
    own, required = block.input.get("properties"), block.input.get("required")
    data: JsonValue = {"type": "object"}
    return {
        **block.input,
        "properties": {**(own if isinstance(own, dict) else {}), "data": data},
        "required": [*(required if isinstance(required, list) else []), "data"],
    }


def check_source(block: CodeBlock) -> list[BlockFault]:
    """The check where no sandbox brings its own: it compiles, keeps to the subset, and `run` takes the input."""
    tree = _compiled(block.source)
    if isinstance(tree, BlockFault):
        return [tree]
    return _in_order([*_beyond_the_subset(tree), *_run_faults(tree, schema_as_called(block))])


def check_alone(source: str) -> list[BlockFault]:
    """The same without what takes a card: where that has mistakes, the source's own are told all the same."""
    tree = _compiled(source)
    return [tree] if isinstance(tree, BlockFault) else _in_order(_beyond_the_subset(tree))


def _compiled(source: str) -> ast.Module | BlockFault:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a warning of the compiler is a mistake of the author
            tree = ast.parse(source)
            compile(tree, "block", "exec", dont_inherit=True)
    except SyntaxError as error:
        return BlockFault(error.lineno, f"is not Python: {error.msg}")
    except (ValueError, RecursionError, MemoryError) as error:
        return BlockFault(None, f"cannot be compiled: {error}")
    return tree


def _beyond_the_subset(tree: ast.Module) -> list[BlockFault]:
    faults = [fault for node in ast.walk(tree) for fault in _faults(node)]
    return faults + [BlockFault(node.lineno, _LOOSE) for node in tree.body if _is_loose(node)]


def _in_order(faults: Sequence[BlockFault]) -> list[BlockFault]:
    return sorted(faults, key=lambda fault: fault.line or 0)


def first_computed_line(source: str) -> int | None:
    """The line of the first value at the top of a block that is more than a literal; None where all are literals."""
    for node in ast.parse(source).body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if value is not None and any(isinstance(each, _COMPUTES) for each in ast.walk(value)):
            return node.lineno
    return None


def _is_loose(node: ast.stmt) -> bool:
    """Whether a statement of the top does something, where only imports, functions and values may stand."""
    match node:
        case ast.Expr(value=ast.Constant()):  # a docstring, or ...
            return False
        case ast.ClassDef():  # told by itself
            return False
    return not isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | _VALUE)


def _faults(node: ast.AST) -> Iterator[BlockFault]:
    match node:
        case ast.Import(names=names):
            modules = [alias.name for alias in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            if level:
                yield BlockFault(node.lineno, "a block has no package to import from")
            modules = [module or "", *(alias.name for alias in names)]
        case ast.Attribute(attr=name) | ast.Name(id=name) | ast.arg(arg=name) if name.startswith("__"):
            yield BlockFault(node.lineno, f"uses {name}, which begins with underscores")
            return
        case ast.Attribute(attr=name) if name.startswith("_"):
            yield BlockFault(node.lineno, f"uses {name}, which begins with an underscore")
            return
        case ast.ClassDef(name=name):
            yield BlockFault(node.lineno, f"defines the class {name}: a block has functions and plain values only")
            return
        case _:
            return
    for module in modules:
        if any(part.startswith("_") for part in module.split(".")):
            yield BlockFault(node.lineno, f"imports {module}, which begins with an underscore")


def _run_faults(tree: ast.Module, schema: dict[str, JsonValue]) -> Iterator[BlockFault]:
    """What keeps the last `run` of the source from being called with what fits the schema."""
    run = next((node for node in reversed(tree.body) if isinstance(node, ast.FunctionDef) and node.name == "run"), None)
    if run is None:
        yield BlockFault(1, "defines no function run: its parameters are the input, what it returns is the result")
        return
    properties, required = schema.get("properties"), schema.get("required")
    handed = {*properties} if isinstance(properties, dict) else set()
    wanted = {*map(str, required)} if isinstance(required, list) else set()
    always = handed & wanted
    takes = run.args
    named = {each.arg for each in (*takes.args, *takes.kwonlyargs)}
    if takes.kwarg is None:
        for name in sorted((handed | wanted) - named):
            yield BlockFault(run.lineno, f"run has no parameter {name}, which the input has")
    plain = [*takes.posonlyargs, *takes.args]
    needed = plain[: len(plain) - len(takes.defaults)]
    needed += [each for each, default in zip(takes.kwonlyargs, takes.kw_defaults, strict=True) if default is None]
    for each in needed:
        if each in takes.posonlyargs:
            yield BlockFault(
                each.lineno, f"run is called by names, so its parameter {each.arg} cannot stand before a /"
            )
        elif each.arg not in always:
            why = "may leave out" if each.arg in handed else "has not"
            yield BlockFault(each.lineno, f"run needs {each.arg}, which the input {why}: give it a default")
