"""Faults of settings and files as lines for the operator.

Each line names the setting or the file, states its fault, and ends with what to do. The value of a secret setting is
never shown, and a URL is shown without its user name and password.
"""

import io
import json
import re
from pathlib import Path
from typing import Any, get_args

from dotenv.parser import parse_stream
from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from perdure.core.text import without_userinfo

_SHOWN_CHARACTERS = 80
_HEADER_SAFE = re.compile(r"[\x21-\x7e]+")
_ADVICE = "correct it, or remove it to use its default"

ENV_FILE_ADVICE = "save it as UTF-8 text that this user can read; .env.example is an example"
"""The advice for a `.env` that cannot be read."""


def setting_faults(error: ValidationError, model: type[BaseModel]) -> str:
    """Returns one line for each setting of `model` that was rejected."""
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    lines: dict[str, str] = {}
    for each in error.errors(include_url=False):
        name = str(each["loc"][0]) if each["loc"] else ""
        lines.setdefault(name, _line(name, fields.get(name, FieldInfo()), each))
    return "\n".join(lines.values())


def _line(name: str, field: FieldInfo, error: Any) -> str:
    text = without_userinfo(str(error["input"]))
    shown = repr(text[:_SHOWN_CHARACTERS]) + ("…" if len(text) > _SHOWN_CHARACTERS else "")
    what = "is invalid" if SecretStr in get_args(field.annotation) else f"is {shown}"
    return f"{name} {what}; it must be {_describe_expected(field, error)}; {_ADVICE}"


def _describe_expected(field: FieldInfo, error: Any) -> str:
    if field.description:
        return field.description
    if field.annotation is bool:
        return "true or false"
    if field.annotation in (int, float):
        limits = _describe_limits(field)
        number = "a whole number" if field.annotation is int else "a number"
        return f"{number} {limits}".rstrip()
    return str(error["msg"]).removeprefix("Input should be ").removeprefix("Value error, ")


def _describe_limits(field: FieldInfo) -> str:
    """Returns the limits of a number, such as `from 1 to 60`."""
    found = {name: getattr(each, name) for each in field.metadata for name in ("gt", "ge", "le") if hasattr(each, name)}
    if "ge" in found and "le" in found:
        return f"from {found['ge']} to {found['le']}"
    words = {"gt": "above", "ge": "of at least", "le": "at most"}
    return " and ".join(f"{words[name]} {limit}" for name, limit in found.items())


def file_fault(path: Path, error: Exception, advice: str) -> str:
    """Returns the line for a file that cannot be read or parsed."""
    if isinstance(error, UnicodeDecodeError):
        byte = error.object[error.start]
        return f"{path} is not UTF-8 text (byte 0x{byte:02x} at position {error.start}); {advice}"
    if isinstance(error, OSError):
        return f"{path} cannot be read: {error.strerror or error}; {advice}"
    if isinstance(error, json.JSONDecodeError):
        return f"{path} is not valid JSON: {error}; {advice}"
    return f"{path} is damaged: {error}; {advice}"


def check_env_file(text: str) -> None:
    """Checks that every line of a `.env` can be parsed. The parser itself only logs those that it leaves out.

    Raises: ValueError that names the first such line, without its text, which may be a secret.
    """
    for binding in parse_stream(io.StringIO(text)):
        if binding.error or (binding.key and binding.value is None):
            line = binding.original.line + len(binding.original.string) - len(binding.original.string.lstrip("\n"))
            raise ValueError(f"line {line} is not NAME=VALUE")


def named_texts(text: str) -> dict[str, str]:
    """Parses a JSON object of texts, such as tokens by user.

    Raises: ValueError with the first fault, never with a value.
    """
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("it must contain a JSON object")
    for name, value in found.items():
        if not isinstance(value, str):
            raise ValueError(f"the value of {name!r} must be a text")
    return found


def header_fault(value: str) -> str:
    """Returns why a header cannot carry this secret, in words that follow its name; empty if it can."""
    if _HEADER_SAFE.fullmatch(value):
        return ""
    if not value:
        return "is empty"
    if "\n" in value or "\r" in value:
        return "contains a line break"
    return "contains a space or a control character" if value.isascii() else "contains a character that is not ASCII"
