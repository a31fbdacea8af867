"""The code of a tool: the text of its function, and of what it reaches in the files of its app.

A statement at the top of a module is the unit: a function, a class, a constant, or a whole `if` or `try`. From the
function's own statement, each used name leads to the statements that bind it in its module, and each import to the
module that it names. This repeats until nothing new is found. Rules:

- A module belongs to the app if its file is in the app's folder. The standard library, Perdure and installed packages
  do not. Each import that is followed is a part without text, such as
  `tools.prices:from decimal import Decimal as Decimal`. So another library makes another code.
- All statements that bind a name are taken, in their order. So are those that change it at the top of its module:
  `LIMITS["eur"] = 5`, `LIMITS.update(usd=6)`, `@HANDLERS.add`.
- `from rules import *` takes the whole text of that module if the name can come from it. So does a module that is used
  as a value (`getattr(rules, name)`), and an attribute that no statement of the module binds.
- A function within a function, such as one that a factory returns, has the whole text of its module. The functions in
  its closure are taken too: a decorator without `functools.wraps` keeps the author's function there. A wrapper with
  `functools.wraps` has the text of its decorator.
- Decorators are followed by their names, also into the functions that are named in their arguments. The arguments of
  Perdure's own `tool` are not read: its settings are on the tool's card, and the caller passes the preview.
- What the text leaves out is in perdure/sdk/source_text.py.

Places are named from the app's folder, and parts are sorted by place. So the digest is equal in all processes and on
all machines, whatever the order of functions in a file.

Not covered: `global` state that is set elsewhere, data files, the environment, programs that are started, modules that
are imported by a computed name, and versions of installed packages.

Nothing here raises. What could not be read is in `Code.notes`, and a mark instead of its text is in `Code.parts`.
"""

import ast
import functools
import importlib.util
import inspect
import sys
import threading
import tokenize
import types
import warnings
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from perdure.contracts.values import digest_of
from perdure.sdk.source_names import Bound, Import, Use, bound_by, used_by
from perdure.sdk.source_text import kept_lines

MAX_STATEMENTS = 2_000
MAX_CHARACTERS = 1_048_576
"""The code of a tool ends there, with a note."""

_ENGINE = "perdure"
_INSTALLED = {"site-packages", "dist-packages", ".venv", "venv"}
_NO_SOURCE = "<no source>"
_one_at_a_time = threading.Lock()
"""The filter of warnings belongs to the process."""


@dataclass(frozen=True, slots=True)
class Code:
    """The code of one tool."""

    parts: tuple[tuple[str, str], ...]
    """Places, such as `tools.tickets:close`, with their texts, sorted by place."""
    notes: tuple[str, ...] = ()
    """Sentences about code that is reached but not covered; empty if the code is complete."""

    @property
    def digest(self) -> str:
        """The SHA-256 of the parts."""
        return digest_of(self.parts)


def code_of(*functions: object, folder: Path | None = None) -> Code:
    """Returns the code of these functions or tools together; their order does not matter.

    `folder` is the app's folder. By default it is found from the first function: the folder of its top-level package,
    or that folder's parent if it is called `tools`.
    """
    wrappers = [wrapper for function in functions for wrapper in _wrappers(function)]
    roots = [root for function in functions for root in _with_closures(_plain(function))]
    roots += [root for wrapper in wrappers for root in _with_closures(wrapper)[1:]]
    files = [_file_of(root) for root in roots]
    found = next(((root, file) for root, file in zip(roots, files, strict=True) if file is not None), None)
    if folder is None and found is not None:
        folder = _folder_of(*found)
    walk = _Walk(Path() if folder is None else folder.absolute())
    for root, file in zip(roots, files, strict=True):
        walk.start(root, file)
    for wrapper in wrappers:
        walk.start_wrapper(wrapper)
    walk.finish()
    return Code(tuple(sorted(walk.parts.items())), tuple(sorted(walk.notes)))


def code_digest(*functions: object, folder: Path | None = None) -> str:
    """Returns the digest of `code_of`, as 64 hexadecimal digits."""
    return code_of(*functions, folder=folder).digest


class _Module:
    """The statements of one file. It depends on the text only, so that each content is read once."""

    def __init__(self, text: str) -> None:
        self.is_readable = True
        self._statements: list[ast.stmt] = []
        self._lines: list[str | None] = [*text.split("\n")]
        self.values: dict[str, list[int]] = {}
        self.imports: dict[str, list[Import]] = {}
        self._uses: dict[int, tuple[Use, ...]] = {}
        try:
            with _one_at_a_time, warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the import has shown them; as errors they would stop the parser
                tree = ast.parse(text)
                self._lines = kept_lines(text, tree)
                self._read(tree)
        except (SyntaxError, ValueError, tokenize.TokenError, RecursionError, MemoryError):
            self.is_readable, self._statements = False, []

    def _read(self, tree: ast.Module) -> None:
        self._statements = tree.body
        bound = [bound_by(statement) for statement in tree.body]
        for index, names in enumerate(bound):
            self._bind(index, names)
        for index, names in enumerate(bound):  # a change of an imported name belongs to the other module
            for name in names.changed & self.values.keys():
                self.values[name] = sorted({*self.values[name], index})
        for index, statement in enumerate(tree.body):
            self._uses[index] = used_by(statement, self._is_of_the_engine)

    def _bind(self, index: int, names: Bound) -> None:
        is_import = isinstance(self._statements[index], ast.Import | ast.ImportFrom)
        for source in names.imports:
            self.imports.setdefault(source.bound, []).append(source)
            if not is_import:  # within `if` or `try`: the whole statement
                self.values.setdefault(source.bound, []).append(index)
        for name in names.values:
            self.values.setdefault(name, []).append(index)

    def _is_of_the_engine(self, name: str) -> bool:
        sources = self.imports.get(name, [])
        return bool(sources) and all(not each.level and _top(each.module) == _ENGINE for each in sources)

    @property
    def text(self) -> str:
        return _joined(self._lines)

    @property
    def size(self) -> int:
        return len(self._statements)

    def binds(self, name: str) -> bool:
        return name in self.values or name in self.imports

    def text_of(self, name: str) -> str:
        """Returns the statements that bind `name` to a value, or change it."""
        found = [self._statements[index] for index in sorted(set(self.values.get(name, ())))]
        return _joined([line for each in found for line in self._lines[_first_line(each) - 1 : each.end_lineno]])

    def uses_of(self, name: str | None) -> Iterable[Use]:
        """Returns the names that those statements use; for None, those of all statements."""
        indexes = sorted(self._uses) if name is None else sorted(set(self.values.get(name, ())))
        return (use for index in indexes for use in self._uses[index])

    def binds_at(self, name: str, line: int) -> bool:
        """Returns whether a statement with this line binds `name`."""
        found = [self._statements[index] for index in self.values.get(name, ())]
        return any(_first_line(each) <= line <= (each.end_lineno or each.lineno) for each in found)


class _Walk:
    """One search. A place is a file or the folder of a package."""

    def __init__(self, folder: Path) -> None:
        self.parts: dict[str, str] = {}
        self.notes: set[str] = set()
        self._folder = folder
        self._bases = [
            folder,
            *(path for each in sys.path if (path := Path(each).absolute()).is_relative_to(folder)),
        ]
        self._modules: dict[Path, _Module | None] = {}
        self._places: dict[tuple[Path, Import], Path | None] = {}
        self._seen: set[tuple[Path, str | None, tuple[str, ...]]] = set()
        self._waiting: deque[tuple[Path, Use]] = deque()
        self._statements = self._characters = 0

    def start(self, function: object, file: Path | None) -> None:
        """Takes the statement of a function that is defined in `file`."""
        name = str(getattr(function, "__qualname__", type(function).__qualname__))
        module = None if file is None else self._module(file)
        if file is None or module is None:
            place = f"{str(getattr(function, '__module__', '')).rpartition('.')[2]}:{name}"
            self.parts[place] = _NO_SOURCE
            self.notes.add(f"{place} has no source")
            return
        outermost, line = name.partition(".")[0], function.__code__.co_firstlineno  # type: ignore[attr-defined]
        if "<locals>" not in name and module.binds_at(outermost, line):
            self._take_name(file, outermost, ())
        else:
            self._take_whole(file)

    def start_wrapper(self, wrapper: types.FunctionType) -> None:
        """Takes the statement at the top of the app's module that contains this wrapper: the decorator's."""
        file = _file_of(wrapper)
        if file is not None and self._is_in_the_app(file):
            self._take_name(file, _top(wrapper.__code__.co_qualname), ())

    def finish(self) -> None:
        """Follows all names that were found."""
        while self._waiting:
            if self._statements > MAX_STATEMENTS or self._characters > MAX_CHARACTERS:
                self.notes.add(f"the code has more than {MAX_STATEMENTS:,} statements or {MAX_CHARACTERS:,} characters")
                return
            file, use = self._waiting.popleft()
            if use.source is not None:
                self._follow_import(file, use.source, use.chain)
            elif not self._take_name(file, use.chain[0], use.chain[1:]):
                self._take_stars(file, use.chain)

    def _take_name(self, file: Path, name: str, chain: tuple[str, ...]) -> bool:
        """Takes the statements that bind `name` in `file`. `chain` are the attributes that are used, which matter if it
        is a module. Returns whether a statement binds it."""
        module = self._module(file)
        if module is None or not module.binds(name):
            return False
        chain = chain if name in module.imports else ()
        if (file, name, chain) in self._seen:
            return True
        self._seen.add((file, name, chain))
        self._take_statements(file, module, name)
        self._waiting += ((file, Use(chain, source)) for source in module.imports.get(name, ()))
        return True

    def _take_statements(self, file: Path, module: _Module, name: str) -> None:
        if name in module.values:
            self._add(f"{self._label(file)}:{name}", module.text_of(name), len(module.values[name]))
            self._waiting += ((file, use) for use in module.uses_of(name))

    def _take_stars(self, file: Path, chain: tuple[str, ...]) -> None:
        """Takes the modules whose names `file` has by `import *`, if the first name of `chain` can be one of them. It
        can be a submodule of such a package, too."""
        name = chain[0]
        module = self._module(file)
        for source in module.imports.get("*", ()) if module is not None else ():
            place = self._located(file, source)
            other = None if place is None else self._module(place)
            if module is not None and (other is None or other.binds(name) or "*" in other.imports):
                self._waiting.append((file, Use((), source)))
                self._take_statements(file, module, "*")  # the `if` or `try` around it
        for each, source, place in self._stars(file, name):
            if place.is_dir() and not self._bindings(place, name) and _found(place / name) is not None:
                self._waiting.append((each, Use(chain, source)))

    def _take_whole(self, place: Path) -> None:
        file = _file_in(place)
        module = self._module(place)
        if module is None or (file, None, ()) in self._seen:
            return
        self._seen.add((file, None, ()))
        if not module.is_readable:
            self.notes.add(f"{self._label(file)} could not be parsed; its whole text was taken")
        self._add(self._label(file), module.text, module.size)
        self._waiting += ((file, use) for use in module.uses_of(None))
        sources = (source for each in module.imports.values() for source in each)
        self._waiting += ((file, Use((), replace(source, loaded=()))) for source in sources)

    def _follow_import(self, file: Path, source: Import, chain: tuple[str, ...]) -> None:
        self._add(f"{self._label(file)}:{source}", "", 1)
        place = self._located(file, source)
        if place is None:
            return
        if source.name is not None and source.name != "*":
            self._take_chain(place, (source.name, *chain))
        elif chain or source.name is None:
            self._take_chain(place, chain, source.loaded)
        else:
            self._take_whole(place)

    def _take_chain(self, place: Path, chain: tuple[str, ...], loaded: tuple[str, ...] = ()) -> None:
        """Takes what the attributes `chain` of the module in `place` are. `loaded` are attributes that are modules for
        sure."""
        for index, name in enumerate(chain):
            rest = chain[index + 1 :]
            is_bound = self._take_name(_file_in(place), name, rest)
            if is_bound and not self._is_submodule(place, name, chain[: index + 1] == loaded[: index + 1]):
                return
            inner = _found(place / name) if place.is_dir() else None
            if inner is None:
                if not is_bound:
                    self._take_whole(place)
                return
            if not is_bound and self._has_value_by_star(place, name, inner):
                self._take_stars(_file_in(place), (name, *rest))
            place = inner
        self._take_whole(place)
        for name in loaded[len(chain) :] if chain == loaded[: len(chain)] else ():
            inner = _found(place / name)
            if inner is None:
                return
            place = inner
            self._take_whole(place)

    def _is_submodule(self, place: Path, name: str, is_loaded: bool) -> bool:
        """Returns whether `name`, which the package in `place` binds, can be the submodule of that name.

        It is one if the package has the name only from the package itself, as by `from . import name`. If an import
        names the submodule (`is_loaded`), it takes the place of a value. A value from that submodule stays.
        """
        file = _file_in(place)
        if file.name != "__init__.py":
            return False
        origins = self._origins(file, name)
        if (file, name) in origins:
            return True
        inner = _found(place / name) if is_loaded else None
        return inner is not None and all(origin != _file_in(inner) for origin, _ in origins)

    def _has_value_by_star(self, place: Path, name: str, inner: Path) -> bool:
        """Returns whether the package in `place` has a value from another file than the submodule `inner` by
        `import *`."""
        bindings = self._bindings(place, name)
        origins = bindings.union(*(self._origins(*each) for each in bindings))
        modules = ((self._module(file), each) for file, each in origins if file != _file_in(inner))
        return any(module is not None and each in module.values for module, each in modules)

    def _origins(self, file: Path, name: str) -> set[tuple[Path, str]]:
        """Returns the files and names from which `name` of `file` comes by imports. A module has an empty name."""
        origins: set[tuple[Path, str]] = set()
        waiting = [(file, name)]
        while waiting:
            file, name = waiting.pop()
            module = self._module(file)
            for source in module.imports.get(name, ()) if module is not None else ():
                place = self._located(file, source)
                if place is not None:
                    nearer = {(_file_in(place), "")} if source.name is None else self._bindings(place, source.name)
                    waiting += nearer - origins
                    origins |= nearer
        return origins

    def _bindings(self, place: Path, name: str) -> set[tuple[Path, str]]:
        """Returns the files that bind the `name` of the module in `place`: the module's own, or those that it has by
        `import *`."""
        files = [_file_in(place), *(_file_in(other) for _, _, other in self._stars(_file_in(place), name))]
        modules = ((file, self._module(file)) for file in files)
        return {(file, name) for file, module in modules if module is not None and module.binds(name)}

    def _stars(self, file: Path, name: str) -> list[tuple[Path, Import, Path]]:
        """Returns each `import *` by which `file` can have `name`, with the importing file and the imported place."""
        stars: list[tuple[Path, Import, Path]] = []
        files = [file]
        for each in files:
            module = self._module(each)
            for source in module.imports.get("*", ()) if module is not None and not module.binds(name) else ():
                place = self._located(each, source)
                if place is not None:
                    stars.append((each, source, place))
                    files += {_file_in(place)} - {*files}
        return stars

    def _located(self, file: Path, source: Import) -> Path | None:
        """Returns the file or folder of the imported module; None if it is not in the app."""
        if (file, source) not in self._places:
            self._places[file, source] = self._look_up(file, source)
        return self._places[file, source]

    def _look_up(self, file: Path, source: Import) -> Path | None:
        parts = source.module.split(".") if source.module else []
        if source.level:
            bases = [file.parents[source.level - 1]] if source.level <= len(file.parents) else []
        elif parts[0] == _ENGINE or parts[0] in sys.stdlib_module_names:
            return None
        else:
            bases = self._bases
        places = (_found(base.joinpath(*parts)) if parts else base for base in bases)
        return next((place for place in places if place is not None and self._is_in_the_app(place)), None)

    def _is_in_the_app(self, place: Path) -> bool:
        return place.is_relative_to(self._folder) and not _INSTALLED & {*place.relative_to(self._folder).parts}

    def _module(self, place: Path) -> _Module | None:
        file = _file_in(place)
        if file not in self._modules:
            self._modules[file] = _read_module(file)
        return self._modules[file]

    def _label(self, file: Path) -> str:
        path = file.relative_to(self._folder) if file.is_relative_to(self._folder) else Path(file.name)
        parts = path.with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)

    def _add(self, place: str, text: str, statements: int) -> None:
        if place not in self.parts:
            self._statements += statements
            self._characters += len(text)
            self.parts[place] = text


@functools.lru_cache(maxsize=256)
def _parsed(text: str) -> _Module:
    return _Module(text)


def _read_module(file: Path) -> _Module | None:
    try:
        content = file.read_bytes()
    except OSError:
        return None
    try:
        text = importlib.util.decode_source(content)
    except (SyntaxError, UnicodeError, LookupError):
        text = content.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    return _parsed(text)


def _plain(function: object) -> object:
    """Returns the author's own function: of a tool, of a preview, of a method, or behind decorators."""
    for _ in range(100):  # a decorator can refer to itself
        inner = getattr(function, "__wrapped__", None) or getattr(function, "__func__", None)
        if inner is None and not hasattr(function, "__code__") and not isinstance(function, type):
            inner = getattr(function, "function", None) or getattr(function, "func", None)
        if inner is None:
            break
        function = inner
    return function


def _wrappers(function: object) -> list[types.FunctionType]:
    """Returns the functions around the author's own one, which `functools.wraps` gives the author's name."""
    around: list[types.FunctionType] = []
    function = getattr(function, "function", function)
    while inspect.isfunction(function) and hasattr(function, "__wrapped__") and function not in around:
        around.append(function)
        function = function.__wrapped__
    return around


def _with_closures(function: object) -> list[object]:
    """Returns `function`, and the functions in its closure: a decorator without `functools.wraps` keeps the author's
    function there."""
    found = [function]
    for each in found:
        for cell in getattr(each, "__closure__", None) or ():
            with suppress(ValueError):  # an empty cell
                content = _plain(cell.cell_contents)
                if inspect.isfunction(content) and not any(content is other for other in found):
                    found.append(content)
    return found


def _file_of(function: object) -> Path | None:
    code = getattr(function, "__code__", None)
    if not inspect.iscode(code) or not code.co_filename.endswith(".py"):
        return None
    try:
        path = Path(code.co_filename).absolute()
        return path if path.is_file() else None
    except (OSError, ValueError):
        return None


def _folder_of(function: object, file: Path) -> Path:
    package = sys.modules.get(_top(str(getattr(function, "__module__", ""))))
    for each in getattr(package, "__path__", ()):
        path = Path(each).absolute()
        if file.is_relative_to(path):
            return path.parent if path.name == "tools" else path
    return file.parent


def _file_in(place: Path) -> Path:
    return place / "__init__.py" if place.suffix != ".py" else place


def _found(path: Path) -> Path | None:
    """Returns the folder of a package or the file of a module, as Python looks them up."""
    file = path.with_name(f"{path.name}.py")
    if path.is_dir() and ((path / "__init__.py").is_file() or not file.is_file()):
        return path
    return file if file.is_file() else None


def _top(module: str) -> str:
    return module.partition(".")[0]


def _first_line(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(each.lineno for each in decorators)])


def _joined(lines: Iterable[str | None]) -> str:
    return "\n".join(line for line in lines if line is not None)
