"""Templates to pages: everything is escaped, what nobody would see is written out, times are told twice."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from policy.moments import ago, left
from policy.printable import flat, pieces
from reviewer.assets import asset
from reviewer.navigation import entries
from reviewer.visit import Visit

_TEMPLATES = Path(__file__).parent / "templates"
_UNSEEN = Markup('<span class="unseen" title="a character that cannot be seen, written out">{}</span>')
_ISOLATED = Markup("<bdi>{}</bdi>")
_TIME = Markup('<time datetime="{}" title="{}" data-told="{}">{}</time>')


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


def moment(at: datetime | None) -> Markup:
    """A time in full, UTC."""
    return Markup("") if at is None else _time(at, told(at))


def since(at: datetime | None) -> Markup:
    """How long ago; the page's script keeps it true."""
    return Markup("") if at is None else _time(at, f"{ago(at, datetime.now(UTC))} ago", "since")


def until(at: datetime | None) -> Markup:
    """How long until then; the page's script counts it down."""
    if at is None:
        return Markup("")
    rest = left(at, datetime.now(UTC))
    return _time(at, f"in {rest}" if rest else "over", "until")


def told(at: datetime) -> str:
    """For example `21 Nov 2026, 23:10 UTC`."""
    return at.astimezone(UTC).strftime("%-d %b %Y, %H:%M UTC")


def _time(at: datetime, shown: str, kept_true: str = "") -> Markup:
    return _TIME.format(at.astimezone(UTC).isoformat(timespec="seconds"), told(at), kept_true, shown)


_FILTERS: Mapping[str, Callable[..., object]] = {
    "seen": seen,
    "brief": brief,
    "moment": moment,
    "since": since,
    "until": until,
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
    made.globals.update(asset=asset)
    return made


_ENVIRONMENT = _environment()


def page(visit: Visit, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """A page, or a part of one."""
    known = {"here": visit.here, "navigation": entries(visit.request.url.path)}
    return HTMLResponse(_ENVIRONMENT.get_template(template).render(**known, **values), status)
