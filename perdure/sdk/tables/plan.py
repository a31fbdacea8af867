"""A plan of work on tables, as typed values. The schema (plan.xsd) defines what it can contain."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final
from xml.etree.ElementTree import Element

MAX_XML_CHARACTERS = 32_768
MAX_FAULTS = 12
_REASON_CHARACTERS = 300
SCHEMA: Final = Path(__file__).parent / "plan.xsd"


@dataclass(frozen=True, slots=True)
class XmlFault:
    """One fault of a text."""

    path: str
    reason: str


@cache
def _schema(path: Path) -> Any:
    import xmlschema

    return xmlschema.XMLSchema10(str(path), defuse="always", allow="local")


def parse_xml(text: str, schema: Path) -> Element | tuple[XmlFault, ...]:
    """Returns the root element of a text that fits the schema, else its faults. No DTD is read and no entity is
    expanded, so that a text of a few lines stays short. A text above the size limit is rejected unread."""
    import xmlschema

    if len(text) > MAX_XML_CHARACTERS:
        return (XmlFault("/", f"has {len(text)} characters; the limit is {MAX_XML_CHARACTERS}"),)
    if not text.lstrip().startswith("<"):
        return (XmlFault("/", "is not XML: it must start with <"),)
    try:
        resource = xmlschema.XMLResource(text, defuse="always", allow="none")
    except (xmlschema.XMLSchemaException, ValueError, SyntaxError, RecursionError) as error:
        return (XmlFault("/", f"cannot be parsed: {str(error)[:_REASON_CHARACTERS]}"),)
    faults = []
    try:
        for found in _schema(schema).iter_errors(resource, max_depth=12):
            faults.append(XmlFault(found.path or "/", (found.reason or found.message)[:_REASON_CHARACTERS]))
            if len(faults) == MAX_FAULTS:
                break
    except (xmlschema.XMLSchemaException, RecursionError) as error:
        faults.append(XmlFault("/", f"cannot be validated: {str(error)[:_REASON_CHARACTERS]}"))
    root: Element = resource.root
    return tuple(faults) or root


@dataclass(frozen=True, slots=True)
class Filter:
    """Keeps the rows for which the formula is true."""

    where: str


@dataclass(frozen=True, slots=True)
class Derive:
    """Adds a column, or replaces its values."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Summary:
    """An aggregation of one column."""

    column: str
    function: str
    name: str


@dataclass(frozen=True, slots=True)
class Group:
    """Makes one row for each combination of `by`, or one row for all if it is empty."""

    by: tuple[str, ...]
    summaries: tuple[Summary, ...]


@dataclass(frozen=True, slots=True)
class JoinWith:
    """Adds the columns of another input."""

    table: str
    left: tuple[str, ...]
    right: tuple[str, ...]
    how: str = "inner"


@dataclass(frozen=True, slots=True)
class Pivot:
    """Makes a column for each value of `columns`."""

    index: str
    columns: str
    values: str
    function: str


@dataclass(frozen=True, slots=True)
class Key:
    """A column that determines the order of rows."""

    column: str
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Window:
    """Adds a column that is computed from the surrounding rows."""

    function: str
    column: str
    name: str
    by: tuple[str, ...] = ()
    order: Key | None = None
    rows: int = 3


@dataclass(frozen=True, slots=True)
class Sort:
    """Sorts the rows."""

    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class Limit:
    """Keeps only the first rows."""

    rows: int


Step = Filter | Derive | Group | JoinWith | Pivot | Window | Sort | Limit


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps in order."""

    steps: tuple[Step, ...] = ()
    main: str = ""
    """The input for the first step: the first one that is visible. Empty if the caller chooses it."""
    hidden: frozenset[str] = frozenset()
    """Inputs that the plan hides."""

    @property
    def table_names(self) -> frozenset[str]:
        """The names of the tables that the plan reads: the main one and those that it joins."""
        joined = {step.table for step in self.steps if isinstance(step, JoinWith)}
        return frozenset((joined | {self.main}) - {""})


def read_plan(text: str) -> Plan | tuple[XmlFault, ...]:
    """Returns the plan in an XML text, or its faults against the schema, each with its path."""
    root = parse_xml(text, SCHEMA)
    if isinstance(root, tuple):
        return root
    inputs = {element.get("name", ""): element.get("visible") not in ("false", "0") for element in root.iter("input")}
    main = next((name for name, visible in inputs.items() if visible), "")
    hidden = frozenset(name for name, visible in inputs.items() if not visible)
    return Plan(tuple(_READERS[child.tag](child) for child in root if child.tag in _READERS), main, hidden)


def _summary(element: Element) -> Summary:
    return Summary(element.get("column", ""), element.get("function", ""), element.get("as", ""))


def _columns(element: Element, tag: str) -> tuple[str, ...]:
    return tuple(child.get("column", "") for child in element.findall(tag))


def _key(element: Element) -> Key:
    return Key(element.get("column", ""), element.get("direction") == "descending")


def _join(element: Element) -> JoinWith:
    pairs = element.findall("on")
    return JoinWith(
        element.get("table", ""),
        tuple(pair.get("left", "") for pair in pairs),
        tuple(pair.get("right", "") for pair in pairs),
        element.get("how", "inner"),
    )


def _window(element: Element) -> Window:
    order = element.find("order")
    return Window(
        element.get("function", ""),
        element.get("column", ""),
        element.get("as", ""),
        _columns(element, "by"),
        _key(order) if order is not None else None,
        int(element.get("rows", "3")),
    )


_READERS: Final[Mapping[str, Callable[[Element], Step]]] = {
    "filter": lambda element: Filter(element.get("where", "")),
    "derive": lambda element: Derive(element.get("as", ""), element.get("value", "")),
    "group": lambda element: Group(_columns(element, "by"), tuple(map(_summary, element.findall("aggregate")))),
    "aggregate": lambda element: Group((), (_summary(element),)),
    "join": _join,
    "pivot": lambda element: Pivot(*(element.get(name, "") for name in ("index", "columns", "values", "function"))),
    "window": _window,
    "sort": lambda element: Sort(tuple(map(_key, element.findall("key")))),
    "limit": lambda element: Limit(int(element.get("rows", "1"))),
}


class TableError(Exception):
    """A plan cannot run, or a table cannot be read. Nothing was changed."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
