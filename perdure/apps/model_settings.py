"""Checks an agent's settings of its models: values that would make every call fail, and keys in the file."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from perdure.apps.files import AppProblem, Place, YamlFile, did_you_mean
from perdure.contracts.agents import SCRIPTED
from perdure.core.agents.models import RESERVED_PARAMETERS, provider_of
from perdure.core.agents.vendors import PROVIDERS

_NUMBERS: Final = ("temperature", "top_p", "frequency_penalty", "presence_penalty")
_COUNTS: Final = ("max_tokens", "max_completion_tokens")
_ADDRESSES: Final = ("api_base", "base_url")
_FALLBACK: Final[Place] = ("fallback", "model")
_KEY_IN_FILE: Final = "the file contains a key; put it into PERDURE_SECRET_<NAME> and set `api_key_secret: NAME`"
_SECRET_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


def model_problems(value: Mapping[str, Any], file: YamlFile) -> Iterator[AppProblem]:
    """Returns the problems of the models and their parameters in an agent's file. A value of the wrong type for its
    field is reported elsewhere."""
    fallback, stages = _mapping(value.get("fallback")), _mapping(value.get("stages"))
    yield from _name_problems(value.get("model"), ("model",), file)
    for name, place in ((value.get("fallback_model"), ("fallback_model",)), (fallback.get("model"), _FALLBACK)):
        yield from _name_problems(name, place, file)
        if name == SCRIPTED != value.get("model", SCRIPTED) and value.get("script") is None:
            yield _at(file, place, "a scripted fallback needs a `script`")
    yield from _param_problems(value.get("model_params"), ("model_params",), file)
    yield from _param_problems(fallback.get("params"), ("fallback", "params"), file)
    for stage, settings in stages.items():
        params = _mapping(settings).get("model_params")
        yield from _param_problems(params, ("stages", stage, "model_params"), file)
    yield from _secret_problems(fallback.get("credential") or None, ("fallback", "credential"), file)


def _name_problems(model: object, place: Place, file: YamlFile) -> Iterator[AppProblem]:
    """Only warns, because a later LiteLLM can know more providers."""
    if isinstance(model, str) and "/" in model and provider_of(model) not in PROVIDERS:
        provider = provider_of(model)
        yield file.warning(place, f"unknown provider {provider!r}{did_you_mean(provider, PROVIDERS)}")


def _param_problems(stated: object, place: Place, file: YamlFile) -> Iterator[AppProblem]:
    for name, param in _mapping(stated).items():
        if name in RESERVED_PARAMETERS:
            yield _at(file, (*place, name), "this parameter is reserved; remove it")
        elif name == "api_key" and param is not None:
            yield file.warning((*place, name), _KEY_IN_FILE)
        elif param is not None and (mistake := _mistake(name, param)):
            yield _at(file, (*place, name), mistake)
        if name == "api_key_secret":
            yield from _secret_problems(param, (*place, name), file)


def _mistake(name: str, param: object) -> str:
    """Returns what is wrong with the parameter; empty if nothing is."""
    is_number = isinstance(param, int | float) and not isinstance(param, bool)
    if name in _NUMBERS and not is_number:
        return "must be a number"
    if name in _COUNTS and not (is_number and isinstance(param, int) and param > 0):
        return "must be a whole number above 0"
    if name in _ADDRESSES and not _is_address(param):
        return "must be an address such as https://models.example.com/v1"
    return ""


def _is_address(param: object) -> bool:
    try:
        url = urlsplit(param) if isinstance(param, str) else None
        return url is not None and url.scheme in ("http", "https") and bool(url.hostname) and (url.port or 1) > 0
    except ValueError:
        return False


def _secret_problems(name: object, place: Place, file: YamlFile) -> Iterator[AppProblem]:
    if name is not None and not (isinstance(name, str) and _SECRET_NAME.fullmatch(name)):
        yield _at(file, place, "must be the name of a secret: up to 64 letters, digits, `_` and `-`")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _at(file: YamlFile, place: Place, mistake: str) -> AppProblem:
    return file.problem(place, f"{'.'.join(map(str, place))}: {mistake}")
