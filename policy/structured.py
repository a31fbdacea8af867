"""The object that a model was to answer with: read strictly, repaired once, believed only where it fits its schema."""

import re
from collections.abc import Mapping

from pydantic import JsonValue

from policy.arguments import Parsed, parse_arguments

_FENCED = re.compile(r"\A\s*```(?:json)?\s*\n(?P<inside>.*?)\n?\s*```\s*\Z", re.DOTALL)


def read_object(text: str, schema: Mapping[str, JsonValue]) -> Parsed:
    """The object in what a model said; its fault is in words for the model."""
    fenced = _FENCED.match(text)
    parsed = parse_arguments(fenced["inside"] if fenced else text, schema)
    if parsed.fault is None:
        return parsed
    return Parsed({}, parsed.digest, parsed.fault.replace("the arguments", "the answer", 1))
