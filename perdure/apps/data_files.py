"""The data tables of an app: `data/<table>.json`, an object that says in `_about` what it is, and whether made up."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contracts.digests import digest_of
from contracts.skills import SKILL_ID_PATTERN, DataTable
from perdure.apps.form import unstorable
from perdure.apps.problems import AppProblem
from perdure.apps.text_file import read_text

MOST_TABLE_BYTES = 1_048_576
"""A sandboxed call is handed the whole table."""


class _Twice(ValueError):
    """A name that is given twice, of which JSON would keep the last."""


def read_tables(folder: Path) -> tuple[dict[str, DataTable | None], list[AppProblem]]:
    """The tables of the app in `folder` by name; None for one with mistakes."""
    tables: dict[str, DataTable | None] = {}
    problems: list[AppProblem] = []
    for path in sorted(folder.glob("data/*.json")):
        body = _read_table(path)
        if isinstance(body, AppProblem):
            problems.append(body)
            tables[path.stem] = None
        else:
            tables[path.stem] = DataTable(name=path.stem, digest=digest_of(body), body=body)
    return tables, problems


def _read_table(path: Path) -> dict[str, Any] | AppProblem:
    if not re.fullmatch(SKILL_ID_PATTERN, path.stem):
        return AppProblem(path, None, "a table's name has lower-case letters, digits and _, starting with a letter")
    text = read_text(path, MOST_TABLE_BYTES)
    if isinstance(text, AppProblem):
        return text
    try:
        body = json.loads(text, object_pairs_hook=_object, parse_constant=float)
    except json.JSONDecodeError as error:
        return AppProblem(path, error.lineno, f"is not JSON here: {error.msg}")
    except _Twice as error:
        return AppProblem(path, None, str(error))
    except (ValueError, RecursionError) as error:
        return AppProblem(path, None, f"cannot be read: {error}")
    for place, why in unstorable(body):
        return AppProblem(path, None, f"{'.'.join(map(str, place)) or 'the table'} {why}")
    if not isinstance(body, dict):
        return AppProblem(path, 1, 'must be one JSON object, with "_about" beside the data')
    about = body.get("_about")
    if not isinstance(about, str) or not about.strip():
        return AppProblem(path, 1, 'needs "_about": a text that says what the data is, and whether it is made up')
    return body


def _object(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    seen: dict[str, Any] = {}
    for name, value in pairs:
        if name in seen:
            raise _Twice(f"the name {name!r} is given twice in one object")
        seen[name] = value
    return seen
