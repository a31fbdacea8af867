"""Templates to pages: everything is escaped, what nobody would see is written out, times are told twice."""

import hashlib
import json
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from perdure.client import Approval, signed_in_words
from perdure.core.text import flat, format_age, format_time_left, one_line, pieces, size, span
from perdure.pages.request import Visit, written

# --- The stylesheet and the scripts: served from here alone, kept by browsers for as long as their bytes are the same.

FOLDER = Path(__file__).parent / "static"
MOUNTED_AT = "/assets"
_KEPT = "public, max-age=31536000, immutable"


@cache
def asset(name: str) -> str:
    """The address of a file, which changes with its bytes."""
    digest = hashlib.sha256((FOLDER / name).read_bytes()).hexdigest()[:12]
    return f"{MOUNTED_AT}/{name}?v={digest}"


class Assets(StaticFiles):
    """The files, with word for browsers to keep them."""

    def __init__(self) -> None:
        super().__init__(directory=FOLDER)

    async def get_response(self, path: str, scope: Scope) -> Response:
        """The file; one asked for by its digest never changes."""
        response = await super().get_response(path, scope)
        if response.status_code == 200 and scope["query_string"].startswith(b"v="):
            response.headers["Cache-Control"] = _KEPT
        return response


# --- The pages that every page leads to.

_PAGES = (
    ("/chat", "Chat"),
    ("/review", "Review"),
    ("/review/mine", "My decisions"),
    ("/agents", "Agents"),
    ("/status", "Status"),
)
_MACHINERY = ("/status",)
"""For those who look after it: others are not led to what the API refuses them."""
_LOOK_AFTER_IT = frozenset({"reviewer", "admin"})
_BELOW = {"/topologies": "/agents"}
"""Pages that are reached from one of these alone."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One way on."""

    path: str
    label: str
    is_here: bool
    """This page, or one below it."""


def entries(path: str, roles: Collection[str] = ()) -> list[Entry]:
    """The navigation as it stands on the page at `path`: the longest entry that it is below is where one is."""
    path = next((above for root, above in _BELOW.items() if path.startswith(root + "/")), path)
    below = [each for each, _ in _PAGES if path == each or path.startswith(each + "/")]
    here = max(below, key=len, default="")
    led = _LOOK_AFTER_IT.intersection(roles)
    return [Entry(each, label, each == here) for each, label in _PAGES if led or each not in _MACHINERY]


# --- A JSON value as a person reads it exactly: every character of it is there or written out, and none of it is
# markup. A line end inside a text is shown as one, behind a mark; a backslash and an n that stand in the text are shown
# as JSON has them, with two backslashes, so the two cannot be taken for each other.

_TEXT = Markup('<span class="text">"{}"</span>')
_NAME = Markup('<span class="name">"{}"</span>: ')
_PLAIN = Markup('<span class="plain-value">{}</span>')
_LINE_END = Markup('<span class="line-end" title="a line end">↵</span>\n')

_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\t": "\\t"})


def drawn(value: Any) -> Markup:
    """`value`, indented."""
    return Markup("").join(_value(value, "\n"))


def _value(value: Any, margin: str) -> Iterator[Markup]:
    if isinstance(value, str):
        yield _TEXT.format(_text(value))
    elif isinstance(value, dict) and value:
        yield from _block("{", "}", [(Markup(_NAME.format(_text(name))), each) for name, each in value.items()], margin)
    elif isinstance(value, list) and value:
        yield from _block("[", "]", [(Markup(""), each) for each in value], margin)
    else:
        yield _PLAIN.format(json.dumps(value))


def _block(opening: str, closing: str, items: list[tuple[Markup, Any]], margin: str) -> Iterator[Markup]:
    inner = margin + "  "
    yield Markup(opening)
    for number, (name, each) in enumerate(items):
        yield Markup("," if number else "") + Markup(inner) + name
        yield from _value(each, inner)
    yield Markup(margin) + Markup(closing)


def _text(text: str) -> Markup:
    """A text as JSON has it, but for its line ends; what nobody would see is written as an escape, and marked."""
    lines = (seen(line.translate(_ESCAPED)) for line in text.split("\n"))
    return _LINE_END.join(lines)


# --- Text from outside, made inert and honest: what stands on the page is what stands in the text.

_UNSEEN = Markup('<span class="unseen" title="a character that cannot be seen, written out">{}</span>')
_ISOLATED = Markup("<bdi>{}</bdi>")


def seen(value: object) -> Markup:
    """Text from outside as a person may read it: no markup of its own, no hidden character, no turned direction.

    Text that runs from right to left stays among itself, and turns nothing beside it.
    """
    text = str(value)
    if text.isascii() and text.isprintable():
        return escape(text)
    drawn = Markup("").join(_UNSEEN.format(piece) if hidden else piece for piece, hidden in pieces(text))
    return _ISOLATED.format(drawn)


def brief(value: object, most: int = 120) -> Markup:
    """The same on one line, cut."""
    return seen(flat(str(value), most))


def plain(value: object, most: int = 120) -> str:
    """The same without marks, for a place that holds no markup: an attribute, an option."""
    return one_line(str(value), most)


# --- What a turn waits for that no page can do: work where the data is.
# How its person goes on with it, to be copied.

_ON_A_TABLE = """\
PERDURE_TOKEN=… .venv/bin/python - <<'END'
import os
from perdure import Client
from perdure.sdk.tables.client_side import HomeTable, finish
with Client({url}, os.environ["PERDURE_TOKEN"]) as perdure:
    made = finish(perdure, {turn}, HomeTable.read({table}))
    open("chart.png", "wb").write(made.png())
END"""
_OTHERWISE = """\
PERDURE_URL={url} PERDURE_TOKEN=… bin/perdure turns answer {turn}
PERDURE_URL={url} PERDURE_TOKEN=… bin/perdure turns answer {turn} --payload answer.json"""


def is_on_a_table(asked: Mapping[str, Any]) -> bool:
    """Whether a plan is to be carried out on a table, and the client's own program knows how."""
    return isinstance(asked.get("plan"), str)


def program_for(asked: Mapping[str, Any], url: str, turn_id: str) -> str:
    """What to type in the folder of Perdure, with the own token."""
    if not is_on_a_table(asked):
        return _OTHERWISE.format(url=url, turn=turn_id)
    # Of a file only its name is told, without its ending and its folder.
    table = f"way/to/{asked.get('table') or 'table'}.csv"
    return _ON_A_TABLE.format(url=json.dumps(url), turn=json.dumps(turn_id), table=json.dumps(table))


_TEMPLATES = Path(__file__).parent / "templates"
_TIME = Markup('<time datetime="{}" title="{}" data-told="{}">{}</time>')


def moment(at: datetime | None) -> Markup:
    """A time in full, UTC."""
    return Markup("") if at is None else _time(at, told(at))


def since(at: datetime | None) -> Markup:
    """How long ago; the page's script keeps it true."""
    return Markup("") if at is None else _time(at, f"{format_age(at, datetime.now(UTC))} ago", "since")


def until(at: datetime | None) -> Markup:
    """How long until then; the page's script counts it down."""
    if at is None:
        return Markup("")
    rest = format_time_left(at, datetime.now(UTC))
    return _time(at, f"in {rest}" if rest else "over", "until")


def told(at: datetime) -> str:
    """For example `21 Nov 2026, 23:10 UTC`."""
    return at.astimezone(UTC).strftime("%-d %b %Y, %H:%M UTC")


def length(seconds: float) -> str:
    """A length of time: `20 s`, `10 min`, `2 h 0 min`."""
    return span(timedelta(seconds=seconds))


def clock(at: datetime | None) -> Markup:
    """The time of the day to the millisecond, UTC."""
    return Markup("") if at is None else _time(at, at.astimezone(UTC).strftime("%H:%M:%S.%f")[:-3])


def _time(at: datetime, shown: str, kept_true: str = "") -> Markup:
    return _TIME.format(at.astimezone(UTC).isoformat(timespec="seconds"), told(at), kept_true, shown)


def time_of(text: object) -> Markup:
    """A time that came as text."""
    try:
        return moment(datetime.fromisoformat(str(text)))
    except ValueError:
        return seen(text)


def as_json(value: object) -> str:
    """A value to be edited: whatever is not plain is written out."""
    return json.dumps(value, indent=2)


def fresh_key() -> str:
    """An Idempotency-Key for one form: sent twice, it is one decision."""
    return str(uuid.uuid4())


def subject(approval: Approval) -> str:
    """What is decided on, in a word or two."""
    if approval.kind == "limit":
        return "the turn's limit"
    return f"{approval.tool or 'the answer'} at {approval.checkpoint}" if approval.checkpoint else approval.tool


_FILTERS: Mapping[str, Callable[..., object]] = {
    "seen": seen,
    "brief": brief,
    "signed_in": signed_in_words,
    "plain": plain,
    "drawn": drawn,
    "moment": moment,
    "since": since,
    "until": until,
    "clock": clock,
    "span": length,
    "time_of": time_of,
    "size": size,
}


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(_FILTERS)
    made.globals.update(asset=asset, as_json=as_json, fresh_key=fresh_key, subject=subject, written=written)
    made.globals.update(is_on_a_table=is_on_a_table, program_for=program_for)
    return made


_ENVIRONMENT = _environment()


def page(visit: Visit, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """A page, or a part of one. `at`: of what answers a form, the address of the page that the form was on; `within`:
    the list that an approval was opened from."""
    path = visit.request.url.path
    known = {
        "here": visit.here,
        "at": "",
        "posted": visit.request.method == "POST",
        "within": "",
        "site": str(visit.request.base_url).rstrip("/"),
        "me": visit.me,
        "form_token": visit.me.form_token or "" if visit.me else "",
        "navigation": entries(path, visit.me.roles if visit.me else ()),
    }
    return HTMLResponse(_ENVIRONMENT.get_template(template).render(**{**known, **values}), status)
