"""Names the tools that a model provider's error is about, so that an operator knows which tool to change."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.activities.providers.errors import MODEL_REQUEST
from perdure.contracts.errors import PerdureError

_DECLARATION = re.compile(r"function_declarations\[(\d+)\]")
"""Gemini's index of a tool; all its functions are in `tools[0]`."""
_POSITION = re.compile(r"\btools(?:\[(\d+)\]|\.(\d+)\b)")
_QUOTED = re.compile(r"\b(?:function|tool)(?: name)?(?: was)?:? ['\"`]?([a-zA-Z0-9_-]{1,64})", re.IGNORECASE)
_TOO_MANY = re.compile(
    r"'tools': array too long|\btoo many (?:tools|functions)|(?:number of|at most \d+) function declarations",
    re.IGNORECASE,
)


def refused_tools(text: str, names: Sequence[str]) -> list[str]:
    """Returns those of `names`, the tools of a request in its order, that a provider's error is about. The provider
    names a tool or its position."""
    found = [int(position) for position in _DECLARATION.findall(text)] or [
        int(first or second) for first, second in _POSITION.findall(text)
    ]
    named = [names[position] for position in found if position < len(names)]
    named += [name for name in _QUOTED.findall(text) if name in names]
    return list(dict.fromkeys(named))


def with_refused_tools(failure: PerdureError, text: str, tools: Sequence[Mapping[str, Any]]) -> PerdureError:
    """Returns `failure`; if it is a rejected request and the provider's text is about tools, with them in its message
    and in `details["tools"]`."""
    if failure.code != MODEL_REQUEST.code:
        return failure
    names = [str(tool["function"]["name"]) for tool in tools]
    refused = refused_tools(text, names)
    if _TOO_MANY.search(text):
        failure.message = f"The model provider rejected a request with {len(names)} tools; offer fewer tools."
        found: dict[str, object] = {"tool_count": len(names)}
    elif refused:
        subject = f"the tool {refused[0]}" if len(refused) == 1 else f"the tools {', '.join(refused)}"
        failure.message = f"The model provider rejected {subject}; change its definition, or remove it from the agent."
        found = {"tools": refused}
    else:
        return failure
    failure.details |= found
    refusal = failure.details.get("refusal")
    if isinstance(refusal, dict):  # the part of the details that the turn's error shows
        refusal |= found
    return failure
