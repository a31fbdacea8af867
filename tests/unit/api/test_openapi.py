"""What a reader of the API's description gets."""

import json
import re
from typing import Any

from perdure.api.app import create_app
from perdure.settings import Settings


def test_every_request_body_and_each_of_its_fields_is_described() -> None:
    described = create_app(Settings(_env_file=None)).openapi()
    schemas: dict[str, Any] = described["components"]["schemas"]
    operations = [operation for item in described["paths"].values() for operation in item.values()]
    contents = [content for each in operations for content in each.get("requestBody", {}).get("content", {}).values()]
    bodies = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(contents)))
    assert len(bodies) > 40
    assert [name for name in bodies if not schemas[name].get("description")] == []
    assert [name for name in bodies if "/v1/" in schemas[name]["description"]] == [], "the route says nothing"
    fields = [(name, field, of) for name in bodies for field, of in schemas[name].get("properties", {}).items()]
    assert [(name, field) for name, field, of in fields if not of.get("description")] == []
