"""The tools that come from a specification to a picture: check it, solve what it leaves open, draw it."""

import asyncio
import json
from typing import Annotated, Any

from pydantic import Field, JsonValue

from perdure import MadeFile, ToolContext, ToolRefused, ToolResult, tool

from . import _design, _drawing, _solver, _vega, _warnings

Xml = Annotated[str, Field(max_length=40_000)]
Columns = Annotated[list[dict[str, Any]], Field(max_length=200)]
Facts = Annotated[list[dict[str, Any]], Field(max_length=50)]
MESSAGES = {
    "unsatisfiable": "No chart can meet all requests; they contradict each other.",
    "timed_out": f"No design was found within {_solver.LIMIT_SECONDS:.0f} s.",
    "failed": "The design could not be computed.",
}


@tool(effect="read", timeout_seconds=20)
async def check_specification(xml: Xml, columns: Columns) -> JsonValue:
    """Check whether a text is the specification of a chart of these columns. If not, return its faults with places."""
    from perdure.sdk.tables import parse_xml

    root = await asyncio.to_thread(parse_xml, xml, _design.SCHEMA)
    if isinstance(root, tuple):
        faults_found: list[JsonValue] = [{"path": one.path, "reason": one.reason} for one in root]
        return {"ok": False, "faults": faults_found}
    faults = _design.specification_faults(_design.specification_of(root), columns)
    return {"ok": not faults, "faults": [{**fault} for fault in faults]}


@tool(effect="read", timeout_seconds=90)
async def solve_design(
    xml: Xml, columns: Columns, marks: Facts | None = None, exclusions: Facts | None = None
) -> JsonValue:
    """Decide what a specification leaves open: the mark, the channels, the scales. Ends within a minute."""
    from perdure.sdk.tables import parse_xml

    root = await asyncio.to_thread(parse_xml, xml, _design.SCHEMA)
    if isinstance(root, tuple):
        raise ToolRefused(f"the specification is invalid: {root[0].path}: {root[0].reason}")
    specification = _design.specification_of(root)
    faults = _design.specification_faults(specification, columns)
    if faults:
        raise ToolRefused(f"the specification is invalid: {faults[0]['path']}: {faults[0]['reason']}")
    solution = await _solver.solve(_design.program_of(specification, columns, marks or (), exclusions or ()))
    timed_out = solution.outcome == "timed_out"
    if solution.outcome != "solved":
        return {
            "success": False,
            "timed_out": timed_out,
            "outcome": solution.outcome,
            "message": MESSAGES[solution.outcome],
        }
    design = _design.design_of(solution.atoms, specification, columns)
    warnings: list[JsonValue] = [*_warnings.warnings_of(design, columns, _design.requested_marks(solution.atoms))]
    unbound = _vega.vega_lite({**design, "notes": warnings}, None)
    status = {"success": True, "timed_out": False, "outcome": "solved"}
    return {**status, "design": design, "specification": unbound, "warnings": warnings}


@tool(effect="read", timeout_seconds=90)
async def draw_design(
    context: ToolContext,
    rows_file: Annotated[str, Field(max_length=64)],
    design: dict[str, Any],
    palette: Annotated[list[Annotated[str, Field(pattern="^#[0-9a-fA-F]{6}$")]] | None, Field(max_length=12)] = None,
) -> ToolResult:
    """Draw a design with the rows of a plan's run: a PNG, an SVG, and the Vega-Lite specification with its data."""
    rows = await context.files.read(rows_file) if context.files else None
    if rows is None:
        raise ToolRefused("the rows no longer exist")
    specification = _vega.vega_lite(design, json.loads(rows.content), palette or ())
    try:
        pictures = await _drawing.draw(specification)
    except _drawing.DrawingFailed as error:
        raise ToolRefused(str(error)) from None
    files = (
        MadeFile("chart.png", "image/png", pictures.png),
        MadeFile("chart.svg", "image/svg+xml", pictures.svg.encode()),
        MadeFile("chart.vl.json", "application/json", json.dumps(specification, ensure_ascii=False).encode()),
    )
    files_by_kind = zip(("png", "svg", "specification"), files, strict=True)
    return ToolResult({kind: context.file_id(file.name) for kind, file in files_by_kind}, files=files)
