"""The names that a statement of a module binds, and those that it uses.

Names are read as Python resolves them: a parameter or a variable of a function hides a name of the module in that
function. The names in a class's body are looked up in the module too.
"""

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name: `import module`, or `from module import name`; `level` is the number of leading dots."""

    level: int
    module: str
    name: str | None
    bound: str
    """The name in the importing module; `*` for all names."""
    loaded: tuple[str, ...] = ()
    """The attributes of `module` that the import makes modules: `("b", "c")` for `import a.b.c`."""

    def __str__(self) -> str:
        if self.name is None:
            return f"import {self.module} as {self.bound}"
        return f"from {'.' * self.level}{self.module} import {self.name} as {self.bound}"


@dataclass(frozen=True, slots=True)
class Use:
    """A used name with its attributes, such as `("rules", "limit")`. If a function imports the name itself, `source` is
    that import, and `chain` has only the attributes."""

    chain: tuple[str, ...]
    source: Import | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """The names that a statement binds to values or imports, and those whose value it changes."""

    values: frozenset[str]
    imports: tuple[Import, ...]
    changed: frozenset[str]


def bound_by(statement: ast.stmt) -> Bound:
    """Returns the names that `statement` binds. A change is `NAMES[key] = value`, `NAMES.add(value)` or a decorator
    `@NAMES.add`."""
    values: set[str] = set()
    changed: set[str | None] = set()
    imports: list[Import] = []
    for node in _own_nodes([statement]):
        values.update(_stored(node))
        imports += _imported(node)
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            changed.add(_base(node))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            changed.add(_base(node.value.func, is_attribute=True))
        for decorator in getattr(node, "decorator_list", ()):
            changed.add(_base(decorator, is_attribute=True))
    return Bound(frozenset(values), tuple(imports), frozenset(name for name in changed if name))


def used_by(statement: ast.stmt, is_engine_decorator: Callable[[str], bool]) -> tuple[Use, ...]:
    """Returns the names of the module that `statement` uses, in their order. The arguments of a decorator whose first
    name satisfies `is_engine_decorator` are not read.

    Raises: RecursionError if an expression is nested too deeply.
    """
    reader = _Reader(is_engine_decorator)
    reader.visit(statement)
    return tuple(dict.fromkeys(reader.found))


class _Reader(ast.NodeVisitor):
    def __init__(self, is_engine_decorator: Callable[[str], bool]) -> None:
        self.found: list[Use] = []
        self._is_engine_decorator = is_engine_decorator
        self._scopes: list[dict[str, list[Import]]] = []

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Store):
            self._add((node.id,))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        attributes = [node.attr]
        value = node.value
        while isinstance(value, ast.Attribute):
            attributes.append(value.attr)
            value = value.value
        if isinstance(value, ast.Name):
            self._add((value.id, *reversed(attributes)))
        else:
            self.visit(value)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.visit(node.value)
        if self._scopes:
            self.visit(node.slice)
        else:  # at the top of a module it can be a type, such as list["Item"]
            self._annotation(node.slice)

    def visit_Global(self, node: ast.Global) -> None:
        self.found += [Use((name,)) for name in node.names]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._defaults(node.args)
        self._within(_locals(node.args, [node.body]), [node.body])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._decorators(node.decorator_list)
        self._all([*node.bases, *node.keywords, *getattr(node, "type_params", ()), *node.body])
        self.found += [Use((), source) for part in _own_nodes(node.body) for source in _imported(part)]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._annotation(node.annotation)
        self._all([node.target, *([node.value] if node.value else [])])

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self._comprehension(node)

    def visit_SetComp(self, node: ast.SetComp) -> None:
        self._comprehension(node)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._comprehension(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self._comprehension(node)

    def _comprehension(self, node: _Comprehension) -> None:
        self.visit(node.generators[0].iter)
        targets = [name for each in node.generators for part in ast.walk(each.target) for name in _stored(part)]
        self._within({name: [] for name in targets}, list(ast.iter_child_nodes(node)))

    def _function(self, node: _Function) -> None:
        self._decorators(node.decorator_list)
        self._defaults(node.args)
        for annotation in [*(each.annotation for each in _parameters(node.args)), node.returns]:
            if annotation is not None:
                self._annotation(annotation)
        self._all(getattr(node, "type_params", ()))
        scope = _locals(node.args, node.body)
        self._within(scope, node.body)
        for part in _own_nodes(node.body):  # an import of a `global` or `nonlocal` name: others can use it as a value
            self.found += [Use((), source) for source in _imported(part) if source.bound not in scope]

    def _decorators(self, decorators: Sequence[ast.expr]) -> None:
        for decorator in decorators:
            base = _base(decorator)
            if base is not None and self._is_engine_decorator(base):
                while isinstance(decorator, ast.Call):
                    decorator = decorator.func
            self.visit(decorator)

    def _defaults(self, arguments: ast.arguments) -> None:
        self._all([*arguments.defaults, *(each for each in arguments.kw_defaults if each is not None)])

    def _annotation(self, annotation: ast.expr) -> None:
        self.visit(annotation)
        for node in ast.walk(annotation):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                try:
                    self.visit(ast.parse(node.value.strip(), mode="eval"))
                except (SyntaxError, ValueError):  # a text of Literal or Annotated
                    continue

    def _within(self, scope: dict[str, list[Import]], nodes: Sequence[ast.AST]) -> None:
        self._scopes.append(scope)
        self._all(nodes)
        self._scopes.pop()

    def _all(self, nodes: Sequence[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def _add(self, chain: tuple[str, ...]) -> None:
        for scope in reversed(self._scopes):
            if chain[0] in scope:
                self.found += [Use(chain[1:], source) for source in scope[chain[0]]]
                return
        self.found.append(Use(chain))


def _own_nodes(nodes: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yields the nodes whose names belong to the scope of `nodes`: not those within functions, classes and
    comprehensions."""
    waiting = list(reversed(nodes))
    while waiting:
        node = waiting.pop()
        if isinstance(node, _COMPREHENSIONS):
            yield from (each.target for each in ast.walk(node) if isinstance(each, ast.NamedExpr))
            continue
        yield node
        if not isinstance(node, (*_FUNCTIONS, ast.Lambda, ast.ClassDef)):
            waiting += reversed(list(ast.iter_child_nodes(node)))


def _locals(arguments: ast.arguments, body: Sequence[ast.AST]) -> dict[str, list[Import]]:
    """Returns the names of a function's own scope, with their imports; a name without imports is a variable."""
    scope: dict[str, list[Import]] = {each.arg: [] for each in _parameters(arguments)}
    outer: set[str] = set()
    for node in _own_nodes(body):
        for name in _stored(node):
            scope.setdefault(name, [])
        for source in _imported(node):
            scope.setdefault(source.bound, []).append(source)
        if isinstance(node, ast.Global | ast.Nonlocal):
            outer.update(node.names)
    return {name: sources for name, sources in scope.items() if name not in outer}


def _parameters(arguments: ast.arguments) -> list[ast.arg]:
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [*named, *(each for each in (arguments.vararg, arguments.kwarg) if each is not None)]


def _stored(node: ast.AST) -> list[str]:
    """Returns the names that `node` itself binds to a value."""
    if isinstance(node, ast.Name):
        return [] if isinstance(node.ctx, ast.Load) else [node.id]
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
        return [node.name] if node.name else []
    if isinstance(node, ast.MatchMapping):
        return [node.rest] if node.rest else []
    return []


def _imported(node: ast.AST) -> list[Import]:
    """Returns the names that an import binds. `import a.b` binds `a`."""
    if isinstance(node, ast.ImportFrom):
        return [Import(node.level, node.module or "", each.name, each.asname or each.name) for each in node.names]
    found = []
    for each in node.names if isinstance(node, ast.Import) else ():
        if each.asname:
            found.append(Import(0, each.name, None, each.asname))
        else:
            top, *loaded = each.name.split(".")
            found.append(Import(0, top, None, top, tuple(loaded)))
    return found


def _base(node: ast.expr, *, is_attribute: bool = False) -> str | None:
    """Returns the first name of an expression such as `names.add(1)`. With `is_attribute`, a name without attributes
    has none."""
    found_attribute = False
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        found_attribute |= isinstance(node, ast.Attribute)
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) and (found_attribute or not is_attribute) else None
