"""Renders templates to pages: everything is escaped, invisible characters are written out, times are relative and
exact."""

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

from perdure.core.text import duration_text, flat, format_age, format_size, format_time_left, one_line, printable_runs
from perdure.core.turns import truncation_notice
from perdure.pages.request import BrowserRequest, typed_texts
from perdure.schemas.approvals import related_words, signed_in_words, subject

STATIC_FOLDER = Path(__file__).parent / "static"
MOUNTED_AT = "/assets"
_CACHE_FOREVER = "public, max-age=31536000, immutable"
_PAGES = (
    ("/chat", "Chat"),
    ("/review", "Review"),
    ("/review/mine", "My decisions"),
    ("/agents", "Agents"),
    ("/status", "Status"),
)
_MANAGEMENT_PATHS = ("/status",)
"""Only for roles that manage the deployment. The API refuses these pages to other users, so they get no link."""
_MANAGEMENT_ROLES = frozenset({"reviewer", "admin"})
_PARENT_PAGES = {"/topologies": "/agents"}
"""Pages that are reached only from another page."""
_TEXT = Markup('<span class="text">"{}"</span>')
_NAME = Markup('<span class="name">"{}"</span>: ')
_PLAIN = Markup('<span class="plain-value">{}</span>')
_LINE_END = Markup('<span class="line-end" title="a line break">↵</span>\n')
_JSON_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\t": "\\t"})
_INVISIBLE = Markup('<span class="unseen" title="an invisible character, written out">{}</span>')
_ISOLATED = Markup("<bdi>{}</bdi>")
_TEMPLATE_FOLDER = Path(__file__).parent / "templates"
_TIME = Markup('<time datetime="{}" title="{}" data-updated="{}">{}</time>')


@cache
def asset_url(name: str) -> str:
    """Returns the address of a file, which changes with its bytes."""
    digest = hashlib.sha256((STATIC_FOLDER / name).read_bytes()).hexdigest()[:12]
    return f"{MOUNTED_AT}/{name}?v={digest}"


class Assets(StaticFiles):
    """Static files with cache headers. They are served only from here, and cached by browsers until their bytes
    change."""

    def __init__(self) -> None:
        super().__init__(directory=STATIC_FOLDER)

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Returns a file. If it is requested by its digest, browsers can cache it forever."""
        response = await super().get_response(path, scope)
        if response.status_code == 200 and scope["query_string"].startswith(b"v="):
            response.headers["Cache-Control"] = _CACHE_FOREVER
        return response


@dataclass(frozen=True, slots=True)
class NavigationEntry:
    """One entry of the navigation."""

    path: str
    label: str
    is_here: bool
    """True on this page and on pages below it."""


def navigation_entries(path: str, roles: Collection[str] = ()) -> list[NavigationEntry]:
    """Returns the navigation for the page at `path`. The longest entry that contains the page is marked as the current
    one."""
    path = next((parent for root, parent in _PARENT_PAGES.items() if path.startswith(root + "/")), path)
    matching = [each for each, _ in _PAGES if path == each or path.startswith(each + "/")]
    current = max(matching, key=len, default="")
    sees_management = _MANAGEMENT_ROLES.intersection(roles)
    return [
        NavigationEntry(each, label, each == current)
        for each, label in _PAGES
        if sees_management or each not in _MANAGEMENT_PATHS
    ]


def json_markup(value: Any) -> Markup:
    """Returns `value` as indented markup. Every character of a value is shown or written out, and markup is inert. A
    line end inside a text is shown as a line end after a mark. A backslash followed by an n is shown as in JSON, with
    two backslashes, so that the two cannot be confused."""
    return Markup("").join(_value_markup(value, "\n"))


def _value_markup(value: Any, margin: str) -> Iterator[Markup]:
    if isinstance(value, str):
        yield _TEXT.format(_text_markup(value))
    elif isinstance(value, dict) and value:
        yield from _block_markup(
            "{", "}", [(Markup(_NAME.format(_text_markup(name))), each) for name, each in value.items()], margin
        )
    elif isinstance(value, list) and value:
        yield from _block_markup("[", "]", [(Markup(""), each) for each in value], margin)
    else:
        yield _PLAIN.format(json.dumps(value))


def _block_markup(opening: str, closing: str, items: list[tuple[Markup, Any]], margin: str) -> Iterator[Markup]:
    inner = margin + "  "
    yield Markup(opening)
    for number, (name, each) in enumerate(items):
        yield Markup("," if number else "") + Markup(inner) + name
        yield from _value_markup(each, inner)
    yield Markup(margin) + Markup(closing)


def _text_markup(text: str) -> Markup:
    """Returns a text as in JSON, except for its line ends. Invisible characters are written as escapes and marked."""
    lines = (visible(line.translate(_JSON_ESCAPES)) for line in text.split("\n"))
    return _LINE_END.join(lines)


def visible(value: object) -> Markup:
    """Returns untrusted text for display: without markup, hidden characters or a changed direction.

    Right-to-left text is isolated, so that it does not reorder the text next to it.
    """
    text = str(value)
    if text.isascii() and text.isprintable():
        return escape(text)
    marked = Markup("").join(_INVISIBLE.format(piece) if hidden else piece for piece, hidden in printable_runs(text))
    return _ISOLATED.format(marked)


def brief(value: object, max_characters: int = 120) -> Markup:
    """Returns the same as `visible`, on one line and cut to `max_characters` characters."""
    return visible(flat(str(value), max_characters))


def plain(value: object, max_characters: int = 120) -> str:
    """Returns the same as `brief` as plain text, for attributes and options."""
    return one_line(str(value), max_characters)


_TABLE_PROGRAM = """\
PERDURE_TOKEN=… .venv/bin/python - <<'END'
import os
from perdure import Client
from perdure.sdk.tables.client_side import ClientTable, finish
with Client({url}, os.environ["PERDURE_TOKEN"]) as perdure:
    made = finish(perdure, {turn}, ClientTable.read({table}))
    open("chart.png", "wb").write(made.png())
END"""
_PLAIN_PROGRAM = """\
PERDURE_URL={url} PERDURE_TOKEN=… bin/perdure turns answer {turn}
PERDURE_URL={url} PERDURE_TOKEN=… bin/perdure turns answer {turn} --payload answer.json"""


def is_table_plan(payload: Mapping[str, Any]) -> bool:
    """Returns whether the request is a plan for a table, which the client's own program can run."""
    return isinstance(payload.get("plan"), str)


def resume_program(payload: Mapping[str, Any], url: str, turn_id: str) -> str:
    """Returns the commands to run in the folder of Perdure with the user's own token. They continue the turn with work
    that a page cannot do; users copy them."""
    if not is_table_plan(payload):
        return _PLAIN_PROGRAM.format(url=url, turn=turn_id)
    # Only the name of the file is known, without its ending and its folder.
    table = f"way/to/{payload.get('table') or 'table'}.csv"
    return _TABLE_PROGRAM.format(url=json.dumps(url), turn=json.dumps(turn_id), table=json.dumps(table))


def moment(at: datetime | None) -> Markup:
    """Returns a full date and time in UTC."""
    return Markup("") if at is None else _time_markup(at, time_text(at))


def since(at: datetime | None) -> Markup:
    """Returns the time since then. The page's script keeps it up to date."""
    return Markup("") if at is None else _time_markup(at, f"{format_age(at, datetime.now(UTC))} ago", "since")


def until(at: datetime | None) -> Markup:
    """Returns the time left until then. The page's script counts it down."""
    if at is None:
        return Markup("")
    remaining = format_time_left(at, datetime.now(UTC))
    return _time_markup(at, f"in {remaining}" if remaining else "now", "until")


def time_text(at: datetime) -> str:
    """Returns a time such as `21 Nov 2026, 23:10 UTC`."""
    return at.astimezone(UTC).strftime("%-d %b %Y, %H:%M UTC")


def format_duration(seconds: float) -> str:
    """Returns a duration such as `20 s`, `10 min` or `2 h 0 min`."""
    return duration_text(timedelta(seconds=seconds))


def clock(at: datetime | None) -> Markup:
    """Returns the time of day to the millisecond, in UTC."""
    return Markup("") if at is None else _time_markup(at, at.astimezone(UTC).strftime("%H:%M:%S.%f")[:-3])


def _time_markup(at: datetime, shown: str, updated_as: str = "") -> Markup:
    return _TIME.format(at.astimezone(UTC).isoformat(timespec="seconds"), time_text(at), updated_as, shown)


def time_of(text: object) -> Markup:
    """Returns the markup of a time in ISO format. Other text is displayed unchanged."""
    try:
        return moment(datetime.fromisoformat(str(text)))
    except ValueError:
        return visible(text)


def as_json(value: object) -> str:
    """Returns a value as editable JSON. Characters outside ASCII are written as escapes."""
    return json.dumps(value, indent=2)


def fresh_key() -> str:
    """Returns an idempotency key for one form, so that sending it twice counts once."""
    return str(uuid.uuid4())


_FILTERS: Mapping[str, Callable[..., object]] = {
    "visible": visible,
    "brief": brief,
    "signed_in": signed_in_words,
    "related": related_words,
    "plain": plain,
    "json_block": json_markup,
    "moment": moment,
    "since": since,
    "until": until,
    "clock": clock,
    "span": format_duration,
    "time_of": time_of,
    "size": format_size,
}


def _create_environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATE_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(_FILTERS)
    environment.globals.update(
        asset=asset_url, as_json=as_json, fresh_key=fresh_key, subject=subject, typed_texts=typed_texts
    )
    environment.globals.update(is_table_plan=is_table_plan, resume_program=resume_program)
    environment.globals.update(truncation_notice=truncation_notice)
    return environment


_ENVIRONMENT = _create_environment()


def page(visit: BrowserRequest, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """Renders a page or a part of one.

    `form_page` is the address of the page whose form is answered. `list_query` is the query string of the list that an
    approval was opened from.
    """
    path = visit.request.url.path
    context = {
        "here": visit.here,
        "form_page": "",
        "posted": visit.request.method == "POST",
        "list_query": "",
        "site": str(visit.request.base_url).rstrip("/"),
        "me": visit.me,
        "form_token": visit.me.form_token or "" if visit.me else "",
        "navigation": navigation_entries(path, visit.me.roles if visit.me else ()),
    }
    return HTMLResponse(_ENVIRONMENT.get_template(template).render(**{**context, **values}), status)
