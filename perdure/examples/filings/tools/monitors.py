"""The monitors' two tools: code blocks of the skill for Rule 32, called directly and answering without a wrapper.

The monitors load no skill, so no block is offered to them; app.yaml fences these names for them. The computation is the
block's own: its source is read here and its `run` called, so that an agent and a monitor always return the same
figures.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, JsonValue

from perdure import ToolRefused, tool

_APP = Path(__file__).parents[1]
_BLOCKS = _APP / "skills" / "rrc_rule32" / "blocks"
_DATA = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(_APP.glob("data/*.json"))}

LeaseName = Annotated[str, Field(min_length=1, max_length=120, description="The lease's name or id")]
Month = Annotated[str, Field(pattern="^[0-9]{4}-(0[1-9]|1[0-2])$", description="A month, such as 2026-01")]


def _function_of(source: str, name: str) -> Callable[..., JsonValue]:
    """The block's `run`."""
    defined: dict[str, Any] = {}
    exec(compile(source, name, "exec"), defined)
    function: Callable[..., JsonValue] = defined["run"]
    return function


_SOURCES = {name: (_BLOCKS / f"{name}.py").read_text("utf-8") for name in ("flaring_volume_calc", "emissions_estimate")}
_FUNCTIONS = {name: _function_of(source, name) for name, source in _SOURCES.items()}


def _version(name: str) -> str:
    """Changes with the script and with the data, as a block's own version does."""
    return hashlib.sha256((_SOURCES[name] + json.dumps(_DATA, sort_keys=True)).encode()).hexdigest()


def _run(name: str, **given: JsonValue) -> JsonValue:
    arguments = {key: value for key, value in given.items() if value is not None}
    try:
        return _FUNCTIONS[name](data=_DATA, **arguments)
    except ValueError as error:
        raise ToolRefused(str(error)) from error


@tool(effect="read", capability="measure_flaring", version=_version("flaring_volume_calc"))
async def flaring_volume_calc(
    lease_name: LeaseName, from_month: Month | None = None, to_month: Month | None = None
) -> JsonValue:
    """Volumes that a lease flared and vented, month by month in mcf, held against Statewide Rule 32 and the exceptions
    on file."""
    return _run("flaring_volume_calc", lease_name=lease_name, from_month=from_month, to_month=to_month)


@tool(effect="read", capability="estimate_emissions", version=_version("emissions_estimate"))
async def emissions_estimate(
    lease_name: LeaseName, from_month: Month | None = None, to_month: Month | None = None
) -> JsonValue:
    """Greenhouse gases of the gas that a lease flared and vented, in metric tons CO2e, by 40 CFR 98.233(n)."""
    return _run("emissions_estimate", lease_name=lease_name, from_month=from_month, to_month=to_month)
