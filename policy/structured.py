"""The object that a model was to answer with: read strictly, repaired once, believed only where it fits its schema.

Six tries at most (S4-23): a JSON schema first, then a function to call, three times over. What only another set-up
could mend (a key, a model's name) ends them at once (S4-24).
"""

import re
from collections.abc import Mapping

from pydantic import JsonValue

from contracts.errors import Problem
from contracts.model import OutputForm
from policy.arguments import Parsed, parse_arguments
from policy.day_budget import DAY_CODES
from policy.refusals import STOPPED

ROUNDS = 3
TRIES: tuple[OutputForm, ...] = (OutputForm.JSON_SCHEMA, OutputForm.FUNCTION) * ROUNDS
"""The forms in their order, one a call."""
HOPELESS = frozenset(
    {"model_auth", "model_billing", "model_not_found", "model_setup", "model_budget", STOPPED.code, *DAY_CODES}
)
"""Problems that another try would meet again."""
_FENCED = re.compile(r"\A\s*```(?:json)?\s*\n(?P<inside>.*?)\n?\s*```\s*\Z", re.DOTALL)


def read_object(text: str, schema: Mapping[str, JsonValue]) -> Parsed:
    """The object in what a model said; its fault is in words for the model."""
    fenced = _FENCED.match(text)
    parsed = parse_arguments(fenced["inside"] if fenced else text, schema)
    if parsed.fault is None:
        return parsed
    return Parsed({}, parsed.digest, parsed.fault.replace("the arguments", "the answer", 1))


def is_hopeless(problem: Problem) -> bool:
    """Whether no further try is worth its price."""
    return problem.code in HOPELESS
