"""The JSON of a body: it says that it is JSON, means one thing to every reader, and holds only what can be stored."""

import json

from policy.text import clean, is_clean

MOST_DEPTH = 64
"""JSON nested deeper is refused."""
_SHOWN_CHARACTERS = 60


class Refused(Exception):
    """A request that goes no further, and the answer to it."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *headers: tuple[bytes, bytes],
        details: dict[str, object] | None = None,
    ) -> None:
        self.status, self.code, self.message, self.headers = status, code, message, headers
        self.details = details or {}


def check_media_type(given: str) -> None:
    """Raises: Refused 415 where the header `Content-Type` does not say JSON."""
    kind = given.partition(";")[0].strip().lower()
    if kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")):
        return
    raise Refused(
        415,
        "unsupported_media_type",
        "a body is JSON and says so: send the header `Content-Type: application/json`"
        + (f", not {clean(kind[:_SHOWN_CHARACTERS])}" if kind else ""),
    )


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object; of a name that comes twice one value would be lost, and which one differs from reader to reader."""
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            shown = json.dumps(clean(name[:_SHOWN_CHARACTERS]))
            raise Refused(400, "duplicate_key", f"the body has the name {shown} twice in one object")
        found[name] = value
    return found


def check_json(body: bytes) -> None:
    """Raises: Refused 400 where it is no JSON that means one thing, 422 where its values cannot be stored."""
    try:
        # From bytes, UTF-16 and UTF-32 would pass as well.
        value = json.loads(body.decode(), object_pairs_hook=_each_once)
    except (ValueError, RecursionError):
        raise Refused(400, "malformed_json", "the body is not JSON that can be read") from None
    _check_value(value)


def _check_value(value: object) -> None:
    """Walk without recursion: depth, and text that Postgres can hold."""
    level = [value]
    for _ in range(MOST_DEPTH):
        deeper: list[object] = []
        for each in level:
            if isinstance(each, str) and not is_clean(each):
                raise Refused(422, "text_not_storable", "a text holds a NUL or half a character (a lone surrogate)")
            if isinstance(each, float) and each - each != 0:
                raise Refused(422, "number_not_finite", "a number is not finite")
            if isinstance(each, int) and not isinstance(each, bool) and each.bit_length() > 1_000:
                raise Refused(422, "number_too_large", "a number is too large")
            if isinstance(each, dict):
                deeper += [*each.keys(), *each.values()]
            elif isinstance(each, list):
                deeper += each
        if not deeper:
            return
        level = deeper
    raise Refused(422, "json_too_deep", f"the body is nested deeper than {MOST_DEPTH} levels")
