"""A JSON file as JSON means it: no name twice in one object, no NaN, nothing that jsonb cannot hold."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perdure.apps.form import unstorable
from perdure.apps.problems import AppProblem


class _Twice(ValueError):
    """A name that is given twice, of which JSON would keep the last."""


def parse_json(path: Path, text: str, called: str) -> Any | AppProblem:
    """The value of `text`, which the file at `path` holds, or why it cannot be taken; `called` is the whole of it."""
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=float)
    except json.JSONDecodeError as error:
        return AppProblem(path, error.lineno, f"is not JSON here: {error.msg}")
    except _Twice as error:
        return AppProblem(path, None, str(error))
    except (ValueError, RecursionError) as error:
        return AppProblem(path, None, f"cannot be read: {error}")
    for place, why in unstorable(value):
        return AppProblem(path, None, f"{'.'.join(map(str, place)) or called} {why}")
    return value


def _object(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    seen: dict[str, Any] = {}
    for name, value in pairs:
        if name in seen:
            raise _Twice(f"the name {name!r} is given twice in one object")
        seen[name] = value
    return seen
