"""The ids of tool calls in a request to a model provider.

A model sees the ids that it gave, because some read them. But providers repeat ids, and reject those of other vendors.
An id that the provider would reject, or that the request already has, is replaced by a derived one. Perdure's own keys
are too long for most providers.
"""

import base64
import hashlib
import itertools
import re
from collections.abc import Iterable
from typing import Final

from perdure.core.agents.models import BEDROCK, is_claude, is_gemini, is_mistral

_SIGNATURE: Final = "__thought__"
"""LiteLLM appends Gemini's thought signature to the id of a call with this separator."""
MAX_ID_CHARACTERS: Final = 65_536
"""Maximum length of a stored id of a provider, with its signature."""

_STRICT: Final = re.compile(r"[A-Za-z0-9]{9}")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
_LONGER: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DOTTED: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_GATEWAYS: Final = ("litellm_proxy/", "openai/")
_MOONSHOT: Final = re.compile(r"kimi|moonshot")
"""Models of Moonshot read their own form, `functions.name:0`, on each host that serves them."""


def id_rule(model: str) -> re.Pattern[str]:
    """Returns the pattern that ids must match in a request to `model`, a LiteLLM name.

    The default satisfies OpenAI and Azure (at most 40 characters) and each vendor that a router could choose.
    """
    if model.startswith(BEDROCK):
        return _DOTTED  # Bedrock checks ids itself, whichever vendor's model it serves
    if is_mistral(model):
        return _STRICT
    if is_gemini(model) or _MOONSHOT.search(model.lower()):
        return _DOTTED
    return _LONGER if is_claude(model) else _PLAIN


def wire_ids(calls: Iterable[tuple[str, str]], model: str) -> dict[str, str]:
    """Returns the ids in a request to `model` by the calls' keys, from each call's key and its provider's id.

    The first call with an id keeps it, so that a conversation that grows does not change what was sent before.
    """
    rule = id_rule(model)
    ids: dict[str, str] = {}
    taken: set[str] = set()
    for key, provider_id in calls:
        own, _ = split_id(provider_id)
        ids[key] = own if rule.fullmatch(own) and own not in taken else _derived_id(key, taken)
        taken.add(ids[key])
    return ids


def _derived_id(key: str, taken: set[str]) -> str:
    """Returns nine letters and digits for `key`, which every provider accepts."""
    digests = (hashlib.sha256(f"{key}.{number}".encode("utf-8", "replace")).digest() for number in itertools.count())
    candidates = (base64.b32encode(digest).decode()[:9] for digest in digests)
    return next(each for each in candidates if each not in taken)


def split_id(provider_id: str) -> tuple[str, str]:
    """Returns a provider's id and the thought signature that it carries; the signature is empty if there is none."""
    own, _, signature = provider_id.partition(_SIGNATURE)
    return own, signature


def stored_id(provider_id: str) -> str:
    """Returns what is stored of a provider's id. If it is too long, its signature is dropped: Gemini rejects a part of
    one."""
    return provider_id if len(provider_id) <= MAX_ID_CHARACTERS else split_id(provider_id)[0][:MAX_ID_CHARACTERS]


def signature_for(model: str, provider_id: str) -> str:
    """Returns the thought signature to send with a call to `model`; empty if there is none or `model` is of another
    vendor. A gateway of LiteLLM takes it too, if the model's name shows that it is Gemini."""
    behind_gateway = model.startswith(_GATEWAYS) and "gemini" in model.lower()
    return split_id(provider_id)[1] if is_gemini(model) or behind_gateway else ""
