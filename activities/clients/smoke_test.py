"""Which of several models plays for this server: the first that answers a word, in the order given (S4-53)."""

from collections.abc import Mapping, Sequence
from contextlib import aclosing

from pydantic import JsonValue

from activities.clients.provider import Complete, Provider, ProviderRequest
from contracts.errors import PerdureError

SECONDS = 20.0
"""In which a model has to answer."""
_SAID: dict[str, JsonValue] = {"role": "user", "content": "Answer with one word: ready."}


async def first_that_answers(models: Sequence[str], provider: Provider, params: Mapping[str, JsonValue]) -> str:
    """The first of `models` that answers.

    Raises: SystemExit, with why each of them did not.
    """
    refused = []
    for model in models:
        why = await _why_not(ProviderRequest(model, (_SAID,), params=params, timeout_seconds=SECONDS), provider)
        if not why:
            return model
        refused.append(f"{model}: {why}")
    raise SystemExit(f"PERDURE_MODELS names no model that answers, so nothing is started. {'; '.join(refused)}")


async def _why_not(request: ProviderRequest, provider: Provider) -> str:
    try:
        async with aclosing(provider.stream(request)) as chunks:
            async for chunk in chunks:
                if isinstance(chunk, Complete):
                    return ""
    except PerdureError as error:
        return f"{error.code}, {error.message}"
    return "it said nothing"
