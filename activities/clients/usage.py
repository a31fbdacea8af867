"""What a call used: the provider's numbers where they can be believed, else an estimate; cost in micro-dollars."""

import json
import math
from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue

from activities.clients.provider import ProviderRequest
from contracts.model import OutputForm
from contracts.turns import Usage
from policy.text import estimated_tokens

MOST_TOKENS = 1_000_000_000
"""A report above this is not believed."""


def tokens_of_request(request: ProviderRequest) -> int:
    """About how many tokens a request is, by its JSON: what was said, the tools, the schema of the answer."""
    return estimated_tokens(_json(request))


def most_input_tokens(request: ProviderRequest) -> int:
    """No fewer tokens than any vendor counts for a request: its bytes.

    A token stands for a byte at least, and the keys of the JSON for what a vendor puts around a message. An estimate
    of four characters a token is exceeded threefold by Chinese or by numbers; this is not.
    """
    return len(_json(request).encode("utf-8", "replace"))


def _json(request: ProviderRequest) -> str:
    wanted = request.output
    schema = [wanted.fits] if wanted is not None and wanted.form is OutputForm.JSON_SCHEMA else []
    return json.dumps([*request.messages, *request.tools, *schema], ensure_ascii=False)


def most_output_tokens(params: Mapping[str, JsonValue], of_model: int | None) -> int | None:
    """What the agent lets an answer have, else what the model can say; None where neither is known."""
    asked = [params.get(name) for name in ("max_completion_tokens", "max_tokens")]
    most = next((each for each in asked if isinstance(each, int) and not isinstance(each, bool)), of_model)
    answers = params.get("n")
    return most if most is None or not isinstance(answers, int) else most * max(1, answers)


def microusd(dollars: float) -> int:
    """Dollars as whole micro-dollars, rounded up, so that a budget is never reached late; nonsense is zero."""
    if not math.isfinite(dollars) or dollars <= 0:
        return 0
    return math.ceil(round(dollars * 1_000_000, 6))


def believable(reported: Any, input_estimate: int, output_estimate: int) -> Usage:
    """`reported`, an object of the OpenAI form, with every number that cannot be true replaced by its estimate."""
    input_tokens = _count(getattr(reported, "prompt_tokens", None), input_estimate)
    cached = _count(getattr(getattr(reported, "prompt_tokens_details", None), "cached_tokens", None), 0)
    said = _count(getattr(reported, "completion_tokens", None), output_estimate)
    thought = _count(getattr(getattr(reported, "completion_tokens_details", None), "reasoning_tokens", None), 0)
    return Usage(
        input_tokens=input_tokens,
        output_tokens=said,
        cached_tokens=min(cached, input_tokens),
        thinking_tokens=min(thought, said),
    )


def cache_written(reported: Any, usage: Usage) -> int:
    """Tokens of the request that its vendor wrote to a cache, which cost more than others (Anthropic's: a quarter); no
    more than it counted and did not read from there."""
    return min(
        _count(getattr(reported, "cache_creation_input_tokens", None), 0), usage.input_tokens - usage.cached_tokens
    )


def _count(value: object, estimate: int) -> int:
    """`value` where it can be a count; zero cannot, where there was something to count."""
    if isinstance(value, bool) or not isinstance(value, int):
        return estimate
    return value if min(estimate, 1) <= value <= MOST_TOKENS else estimate
