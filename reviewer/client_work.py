"""What a turn waits for that no page can do: work where the data is. How its person goes on with it, to be copied."""

import json
from collections.abc import Mapping
from typing import Any

_ON_A_TABLE = """\
PERDURE_TOKEN=… .venv/bin/python - <<'END'
import os
from perdure import Client
from perdure.tables.at_home import HomeTable, finish
with Client({url}, os.environ["PERDURE_TOKEN"]) as perdure:
    made = finish(perdure, {turn}, HomeTable.read({table}))
    open("chart.png", "wb").write(made.png())
END"""
_OTHERWISE = """\
PERDURE_URL={url} PERDURE_TOKEN=… bin/perdure turns answer {turn}
PERDURE_URL={url} PERDURE_TOKEN=… bin/perdure turns answer {turn} --payload answer.json"""


def is_on_a_table(asked: Mapping[str, Any]) -> bool:
    """Whether a plan is to be carried out on a table, and the client's own program knows how."""
    return isinstance(asked.get("plan"), str)


def program_for(asked: Mapping[str, Any], url: str, turn_id: str) -> str:
    """What to type in the folder of Perdure, with the own token."""
    if not is_on_a_table(asked):
        return _OTHERWISE.format(url=url, turn=turn_id)
    # Of a file only its name is told, without its ending and its folder.
    table = f"way/to/{asked.get('table') or 'table'}.csv"
    return _ON_A_TABLE.format(url=json.dumps(url), turn=json.dumps(turn_id), table=json.dumps(table))
