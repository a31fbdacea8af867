"""The data tables of an app: `data/<table>.json`, an object that says in `_about` what it is, and whether made up."""

import re
from pathlib import Path
from typing import Any

from contracts.digests import digest_of
from contracts.skills import SKILL_ID_PATTERN, DataTable
from perdure.apps.json_file import parse_json
from perdure.apps.problems import AppProblem
from perdure.apps.text_file import read_text

MOST_TABLE_BYTES = 1_048_576
"""A sandboxed call is handed the whole table."""


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
    body = parse_json(path, text, "the table")
    if isinstance(body, AppProblem):
        return body
    if not isinstance(body, dict):
        return AppProblem(path, 1, 'must be one JSON object, with "_about" beside the data')
    about = body.get("_about")
    if not isinstance(about, str) or not about.strip():
        return AppProblem(path, 1, 'needs "_about": a text that says what the data is, and whether it is made up')
    return body
