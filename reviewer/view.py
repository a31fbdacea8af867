"""Templates to pages: everything is escaped, what nobody would see is written out, times are told twice."""

import json
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from perdure.client import Approval, signed_in_words
from policy.moments import ago, left, span
from policy.printable import size
from reviewer.assets import asset
from reviewer.client_work import is_on_a_table, program_for
from reviewer.forms import written
from reviewer.json_view import drawn
from reviewer.navigation import entries
from reviewer.seen import brief, plain, seen
from reviewer.visit import Visit

_TEMPLATES = Path(__file__).parent / "templates"
_TIME = Markup('<time datetime="{}" title="{}" data-told="{}">{}</time>')


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
