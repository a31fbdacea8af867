"""What a reader of the API's description gets."""

import json
import re
from typing import Any

from perdure.api.app import create_app
from perdure.settings import Settings


def named_in(part: Any) -> set[str]:
    return set(re.findall(r"#/components/schemas/(\w+)", json.dumps(part)))


def test_every_request_body_field_and_parameter_is_described() -> None:
    described = create_app(Settings(_env_file=None)).openapi()
    schemas: dict[str, Any] = described["components"]["schemas"]
    operations = [operation for item in described["paths"].values() for operation in item.values()]
    contents = [content for each in operations for content in each.get("requestBody", {}).get("content", {}).values()]
    bodies = named_in(contents)
    while inner := {name for body in bodies for name in named_in(schemas[body])} - bodies:
        bodies |= inner
    bodies -= {"JsonValue"}
    assert len(bodies) > 50
    assert [name for name in bodies if not schemas[name].get("description")] == []
    assert [name for name in bodies if "/v1/" in schemas[name]["description"]] == [], "the route says nothing"
    fields = [(name, field, of) for name in bodies for field, of in schemas[name].get("properties", {}).items()]
    assert [(name, field) for name, field, of in fields if not of.get("description")] == []
    parameters = [parameter for each in operations for parameter in each.get("parameters", [])]
    assert [each["name"] for each in parameters if not each.get("description")] == []
