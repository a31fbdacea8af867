"""A code block's source against the subset that every sandbox understands.

What is refused here is refused for clarity, not for safety: the sandbox is what holds a block. A sandbox's own type
checker is asked through `Engine.check_block`.
"""

import ast
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from contracts.skills import CodeBlock


@dataclass(frozen=True, slots=True)
class BlockFault:
    """One thing that a block may not do."""

    line: int | None
    """In its source, from 1."""
    message: str


BlockCheck = Callable[[CodeBlock], Sequence[BlockFault]]
"""What is wrong with a block; nothing where it may run."""


def check_source(block: CodeBlock) -> list[BlockFault]:
    """The check where no sandbox brings its own: it compiles, ends in its result, and keeps to the subset."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a warning of the compiler is a mistake of the author
            tree = ast.parse(block.source)
            compile(tree, block.name, "exec", dont_inherit=True)
    except SyntaxError as error:
        return [BlockFault(error.lineno, f"is not Python: {error.msg}")]
    except (ValueError, RecursionError, MemoryError) as error:
        return [BlockFault(None, f"cannot be compiled: {error}")]
    faults = [fault for node in ast.walk(tree) for fault in _faults(node)]
    if not tree.body or not isinstance(tree.body[-1], ast.Expr):
        line = tree.body[-1].lineno if tree.body else 1
        faults.append(BlockFault(line, "its last statement must be an expression: that is the block's result"))
    return sorted(faults, key=lambda fault: fault.line or 0)


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
