"""Every template as a browser gets it: one snapshot each, of one set of answers of the API."""

import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from jinja2 import meta
from syrupy.assertion import SnapshotAssertion

from perdure.api.app import create_app
from perdure.graph.manifest import manifest_of
from perdure.graph.registry import spec
from perdure.pages import render
from perdure.settings import Settings
from tests.unit.pages.conftest import Browse, SpokenApi, ok

TEMPLATES = {path.name: path.read_text() for path in (Path(render.__file__).parent / "templates").iterdir()}
GIVEN = yaml.safe_load((Path(__file__).parent / "templates.yaml").read_text())


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
