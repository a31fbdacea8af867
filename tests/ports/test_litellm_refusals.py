"""A provider's refusal in its documented form has its class, and keeps status, code, parameter and sentence."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from perdure.activities.providers.errors import problem_of
from perdure.contracts.errors import PerdureError
from tests.doubles.providers.client import UNWARNED, RecordingClient
from tests.doubles.providers.script import Step

pytestmark = UNWARNED
CASES: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text())["cases"]
KEY = "sk-secret-123"


def tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
async def test_a_refusal_has_its_code_and_keeps_what_helps(client: RecordingClient, case: dict[str, Any]) -> None:
    model = case["model"]
    media = "text/event-stream" if case["status"] == 200 else "application/json"
    step = Step(status=case["status"], body=case["body"], media=media)
    tools = tuple(tool(name) for name in case.get("tools", ()))
    asking = client.ask(step, model=model, tools=tools, api_key=KEY, **case.get("params", {}))
    if case["code"] == "content_refused":
        await asking
        assert client.complete.finish_reason == "content_filter"
        return
    with pytest.raises(PerdureError) as raised:
        await asking
    error, details = raised.value, case["details"]
    if "host" in details:
        details = {**details, "host": f"127.0.0.1:{client.double.port}"}
    assert error.code == case["code"]
    assert problem_of(error, model).details == {"model": model, **details}
    assert error.details.get("status") == details.get("status"), "a status that LiteLLM invents is not shown"
    named = details.get("tools", [details.get("param", "")])
    assert error.code != "model_bad_request" or all(each in error.message for each in named)
    assert KEY not in repr(error)
    assert len(client.double.requests) == 1
