"""Text from outside and times as the pages draw them, forms as they are posted: read within limits, or refused; and
every template as a browser gets it: one snapshot each, of one set of answers of the API."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from fastapi import Request
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import meta
from syrupy.assertion import SnapshotAssertion

from perdure.api.app import create_app
from perdure.graph.manifest import manifest_of
from perdure.graph.registry import spec
from perdure.pages import render
from perdure.pages.render import brief, moment, since, until, visible
from perdure.pages.request import MAX_FORM_BYTES, PageProblem, read_form
from perdure.settings import Settings
from tests.unit.pages.conftest import Browse, SpokenApi, ok

FORM = "application/x-www-form-urlencoded"
TEMPLATES = {path.name: path.read_text() for path in (Path(render.__file__).parent / "templates").iterdir()}
GIVEN = yaml.safe_load((Path(__file__).parent / "templates.yaml").read_text())


@pytest.mark.parametrize(("text", "drawn"), [
    ("plain", "plain"), ("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
    ("a\u202eb", '<bdi>a<span class="unseen"'), ("\x1b[2J", "\\u001b</span>[2J"),
    ("zero\u200bwidth", "\\u200b</span>width"), ("\u05d0\u05d1", "<bdi>\u05d0\u05d1</bdi>"),
    ("two\nlines", "<bdi>two\nlines</bdi>"), ("**bold** [a](javascript:x)", "**bold** [a](javascript:x)"),
    ('" onmouseover="x', "&#34; onmouseover=&#34;x"),
])  # fmt: skip
def test_text_from_outside_is_drawn_inert(text: str, drawn: str) -> None:
    assert drawn in visible(text)


@given(st.text(), st.integers(min_value=2, max_value=50))
def test_whatever_the_text_only_our_own_markup_is_in_it_and_a_brief_one_is_one_line(text: str, most: int) -> None:
    assert "\n" not in brief(text, most)
    drawn = str(visible(text))
    drawn = re.sub(r'<span class="unseen" title="[^"<>]*">|</span>|</?bdi>', "", drawn)
    assert "<" not in drawn and ">" not in drawn and '"' not in drawn


def test_times_are_shown_in_full_and_relative() -> None:
    at = datetime(2026, 3, 1, 9, 5, tzinfo=UTC)
    assert 'datetime="2026-03-01T09:05:00+00:00" title="1 Mar 2026, 09:05 UTC" data-updated=""' in moment(at)
    now = datetime.now(UTC)
    left, gone = until(now + timedelta(hours=2, minutes=30)), since(now - timedelta(minutes=3, seconds=5))
    assert 'data-updated="until"' in left and "2 h" in left and 'data-updated="since"' in gone and "3 min" in gone
    assert re.fullmatch(r"\D+", until(now - timedelta(seconds=1)).partition(">")[2]), "nothing is left to count"
    assert since(None) == moment(None) == until(None) == ""


def posted(body: bytes, kind: str = FORM) -> Request:
    pieces = [body[start : start + 65_536] for start in range(0, len(body), 65_536)] or [b""]

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    return Request({"type": "http", "method": "POST", "headers": [(b"content-type", kind.encode())]}, receive)


async def test_fields_come_in_their_order_blank_ones_included() -> None:
    form = await read_form(posted(b"a=1&b=&a=%202+&c=x%0D%0Ay"))
    assert form.all("a") == ["1", " 2 "]
    assert (form.get("a"), form.get("b", "-"), form.get("z", "-")) == ("1", "", "-")
    assert (form.raw("c"), form.raw("z")) == ("x\ny", None)


@pytest.mark.parametrize(("body", "kind", "status"), [
    (b"a=1", "text/plain", 415), (b"a=1", "application/json", 415), (b"a=%ff", FORM, 400),
    ("a=é".encode(), FORM, 400), (b"&".join([b"a=1"] * 2_001), FORM, 400), (b"a=%00", FORM, 422),
    (b"a=" + b"x" * MAX_FORM_BYTES, FORM, 413), (b"a=" + b"x" * 10_000_000, FORM, 413),
])  # fmt: skip
async def test_a_foreign_form_is_refused(body: bytes, kind: str, status: int) -> None:
    with pytest.raises(PageProblem) as refused:
        await read_form(posted(body, kind))
    assert refused.value.status == status


def test_no_template_is_without_a_snapshot() -> None:
    """Parts that other templates import or include are drawn with these."""
    drawn = {f"{name}.html" for name in GIVEN["requests"]}
    parsed = [render._ENVIRONMENT.parse(TEMPLATES[name]) for name in drawn]
    assert {*TEMPLATES} - drawn - {part for each in parsed for part in meta.find_referenced_templates(each)} == set()


@pytest.mark.parametrize("name", GIVEN["requests"])
async def test_a_template_is_drawn(
    api: SpokenApi, browse: Browse, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion, name: str
) -> None:
    described = create_app(Settings(_env_file=None)).openapi() if name == "reference" else {"paths": {}}
    described["paths"] = {path: item for path, item in described["paths"].items() if path.startswith("/v1/delegations")}
    more = {"/v1/topologies/tool_loop": manifest_of(spec("tool_loop")), "/openapi.json": described}
    api.answers |= {path: ok(body) for path, body in (GIVEN["answers"] | more).items()}
    get_template = Mock(wraps=render._ENVIRONMENT.get_template)
    monkeypatch.setattr(render._ENVIRONMENT, "get_template", get_template)
    request: dict[str, Any] = GIVEN["requests"][name]
    *live, method, path = request["ask"].split()
    sent = {"data": request.get("form"), "files": {"file": tuple(request["file"])} if "file" in request else None}
    text = (await browse(path, method, headers={"HX-Request": "true"} if live else {}, **sent)).text
    assert get_template.call_args_list[0].args[0] == f"{name}.html"
    text = re.sub(r'(data-updated="\w+">)[^<]*', r"\1TIME", re.sub(r"\?(v|mark)=\w+", r"?\1=DIGEST", text))
    text = re.sub(r'(name="key" value=")[^"]+', r"\1KEY", text)
    assert (text if name == "problem" else text[max(text.find("<main"), 0) :]) == snapshot
