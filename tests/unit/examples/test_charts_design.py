"""The design of charts: facts without names, what the rules decide, limits that end the solver, inert pictures."""

import asyncio
import json
import sys
import time
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.examples.charts.tools import _design, _drawing, _solver, _vega, _warnings
from perdure.examples.charts.tools.tables import check_plan
from perdure.local.processes import alive
from perdure.sdk.tables import parse_xml, read_csv
from perdure.sdk.tables.reading import rows_to_show
from tests.eventually import until
from tests.scale import sized
from tests.unit.apps.tool_contexts import context

COLUMNS: list[dict[str, Any]] = [
    {"name": "region", "kind": "nominal", "distinct": 4},
    {"name": "sales", "kind": "quantitative", "distinct": 40, "least": 1.0, "most": 50.0},
    {"name": "day", "kind": "temporal", "distinct": 30},
    {"name": "cost", "kind": "quantitative", "distinct": 40, "least": -5.0, "most": 50.0},
    {"name": "city", "kind": "nominal", "distinct": 200},
]
HOLES = "p(1..13). h(1..12). 1{at(P,H):h(H)}1 :- p(P). :- at(P,H), at(Q,H), P<Q."
GROUNDS = "p(1..3000). q(A,B,C,D) :- p(A), p(B), p(C), p(D)."
"""Two that no solver comes to an end of."""


def wanted(*shows: str, concept: str = "", intent: str = "", title: str = "t") -> dict[str, Any]:
    """A specification; `sales@y` puts a column on a channel."""
    split = [show.partition("@") for show in shows]
    shown = [{"column": column, "on": channel} for column, _, channel in split]
    return {"title": title, "concept": concept, "intent": intent, "shows": shown}


async def solved(spec: dict[str, Any], columns: list[dict[str, Any]] = COLUMNS, **given: Any) -> _solver.Solution:
    return await _solver.solve(_design.program_of(spec, columns, **given), 30.0)


async def designed(specification: dict[str, Any], **given: Any) -> dict[str, Any]:
    found = await solved(specification, **given)
    assert found.outcome == "solved", found
    return _design.design_of(found.atoms, specification, given.get("columns", COLUMNS))


def children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


@pytest.mark.parametrize(("specification", "mark", "places"), [
    (wanted("region", "sales"), "bar", {"x": "region", "y": "sales"}),
    (wanted("day", "sales"), "line", {"x": "day", "y": "sales"}),
    (wanted("sales", "cost"), "point", {"x": "sales", "y": "cost"}),
    (wanted("cost", "sales"), "point", {"x": "cost", "y": "sales"}),
    (wanted("sales", "day"), "line", {"x": "day", "y": "sales"}),
    (wanted("sales"), "bar", {"x": "sales", "y": ""}),
    (wanted("region"), "bar", {"x": "region", "y": ""}),
    (wanted("region", "sales", concept="a pie chart"), "arc", {"color": "region", "size": "sales"}),
    (wanted("region", "day", "sales", concept="heatmap"), "rect", None),
    (wanted("day", "sales", "region"), "line", {"x": "day", "y": "sales", "color": "region"}),
    (wanted("region@y", "sales@x"), "bar", {"x": "sales", "y": "region"}),
])  # fmt: skip
async def test_open_choices_are_filled(specification: dict[str, Any], mark: str, places: dict[str, str] | None) -> None:
    design = await designed(specification)
    assert design["mark"] == mark
    shown = {channel: one["column"] for channel, one in design["encodings"].items()}
    assert places is None or shown == places
    assert {show["column"] for show in specification["shows"]} <= set(shown.values())


async def test_exclusions_scores_and_their_scope_are_obeyed_and_excluding_everything_is_an_outcome() -> None:
    both = wanted("region", "sales")
    no_bar = [{"selector": "mark", "value": "bar", "scope": "*"}]
    assert (await designed(both, exclusions=no_bar))["mark"] != "bar"
    likely = [{"mark": "arc", "score": 0.9}, {"mark": "line", "score": 0.4}]
    assert (await designed(both, marks=likely))["mark"] == "arc"
    no_y_here = [{"selector": "channel", "value": "y", "scope": "bar"}]
    assert (await designed(both, exclusions=no_y_here))["mark"] != "bar"
    none = [{"selector": "mark", "value": mark, "scope": "*"} for mark in _design.MARKS]
    assert await solved(both, exclusions=none) == _solver.Solution("unsatisfiable")


@given(st.text(max_size=60), st.text(max_size=30), st.text(max_size=30))
def test_no_text_of_a_user_or_table_becomes_a_rule(name: str, word: str, value: str) -> None:
    columns = [{**COLUMNS[0], "name": name}]
    told = ((value, word), ("mark", "bar"))
    exclusions = [{"selector": selector, "value": what, "scope": name} for selector, what in told]
    specification = {**wanted("x", concept=f'{word}"). evil("{name}'), "shows": [{"column": name, "on": ""}]}
    program = _design.program_of(specification, columns, [{"mark": word, "score": 0.9}], exclusions)
    facts = program.removeprefix(_design.RULES.read_text())
    for line in facts.strip().splitlines():
        assert line.startswith(("column(c0,", "shown(c0)", "concept(", "likely(", "excluded(")), line
        assert line.count("(") == line.count(")") == 1 and line.endswith(").")


@pytest.mark.sized
async def test_an_endless_search_is_ended_at_its_limit_and_leaves_nothing() -> None:
    before, limit = children(), sized(4, 1) / 2
    for bomb in (HOLES, GROUNDS):
        began = time.monotonic()
        found = await _solver.solve(bomb, limit)
        assert found.outcome in ("timed_out", "failed") and found.atoms == ()
        assert time.monotonic() - began < limit + 1.0
    assert children() <= before


async def test_a_caller_that_is_cancelled_leaves_no_solver_behind() -> None:
    before = children()
    task = asyncio.create_task(_solver.solve(GROUNDS, 60.0))
    await until(lambda: bool(children() - before))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert children() <= before


async def test_a_solver_dies_with_the_process_that_started_it() -> None:
    code = "import asyncio; from perdure.examples.charts.tools import _solver; "
    code += f"asyncio.run(_solver.solve({HOLES!r}, 600.0))"
    starter = psutil.Popen([sys.executable, "-c", code])
    try:
        await until(lambda: bool(starter.children()))
        (solver,) = starter.children()
        await until(lambda: solver.cpu_times().user > 0.3)  # it works
    finally:
        starter.kill()
        starter.wait()
    await until(lambda: alive(solver.pid) is None)


async def test_names_and_titles_are_text_in_the_picture_and_no_address_is_requested() -> None:
    evil = 'x.y[0] <script>alert("1")</script>'
    design = {
        "title": "<img src=http://127.0.0.1:1/x>",
        "mark": "bar",
        "encodings": {"x": {"column": evil, "kind": "nominal", "scale": "band", "binned": False},
                      "y": {"column": "", "kind": "quantitative", "scale": "", "binned": False}},
    }  # fmt: skip
    drawn = await _drawing.draw(_vega.vega_lite(design, [{evil: "a & <b>"}, {evil: "c"}], ("#112233",)))
    assert drawn.png[:8] == b"\x89PNG\r\n\x1a\n"
    assert "<script>" not in drawn.svg and "<img" not in drawn.svg and "a &amp; &lt;b&gt;" in drawn.svg
    assert "#112233" in drawn.svg


async def test_a_day_is_drawn_as_itself_where_clocks_are_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/Los_Angeles")
    encoding = {"column": "day", "kind": "temporal", "scale": "time", "binned": False}
    by_name = {**encoding, "column": "n", "kind": "nominal"}
    design = {"title": "", "mark": "bar", "encodings": {"x": encoding, "y": by_name}}
    rows = [{"day": f"2024-03-0{n}", "n": "a"} for n in range(1, 4)]
    drawn = await _drawing.draw(_vega.vega_lite(design, rows))
    assert "Mar 01, 2024" in drawn.svg and "Feb 29" not in drawn.svg, drawn.svg
    few = {**design, "encodings": {"x": {**encoding, "distinct": 3}, "y": by_name}}
    drawn = await _drawing.draw(_vega.vega_lite(few, rows))
    assert "PM<" not in drawn.svg and "Sat 02<" in drawn.svg, "a few days have no hours between them"


async def test_rows_of_one_bar_are_stacked_and_a_pie_has_no_negative_slice() -> None:
    design = await designed(wanted("region", "sales"))
    rows = [{"region": "N", "sales": 30}, {"region": "N", "sales": 5}, {"region": "S", "sales": 10}]
    assert ">35<" in (await _drawing.draw(_vega.vega_lite(design, rows))).svg, "the axis reaches the sum"
    assert (await designed(wanted("region", "cost", concept="pie")))["mark"] != "arc"


async def test_rows_without_a_value_are_left_out_and_reported_and_a_missing_name_is_one() -> None:
    columns = [{**COLUMNS[0], "nulls": 1}, {**COLUMNS[1], "nulls": 2}]
    design = await designed(wanted("region", "sales"), columns=columns)
    by_region, by_sales = _warnings.warnings_of(design, columns, ())
    assert by_region.startswith("1 ") and "'region'" in by_region
    assert by_sales.startswith("2 ") and "'sales'" in by_sales
    table = read_csv(b"region,sales\nNorth,30\nSouth,\n,5\nEast,\n")
    drawn = await _drawing.draw(_vega.vega_lite(design, rows_to_show(table)))
    assert all(f">{word}<" in drawn.svg for word in ("North", "(missing)"))
    assert all(f">{word}<" not in drawn.svg for word in ("South", "East", "null")), "nothing is drawn as zero"
    assert _warnings.warnings_of(await designed(wanted("region", "sales")), COLUMNS, ()) == []


@pytest.mark.parametrize(("specification", "told"), [
    (wanted("region", "cost", concept="a pie chart"), 1), (wanted("city", "sales", concept="pie"), 1),
    (wanted("region", "sales", concept="pie"), 0), (wanted("region", "sales", concept="bar or pie"), 0),
    (wanted("region", "sales", concept="wonderful"), 0),
])  # fmt: skip
async def test_a_mark_other_than_the_requested_one_is_reported(specification: dict[str, Any], told: int) -> None:
    found = await solved(specification)
    design = _design.design_of(found.atoms, specification, COLUMNS)
    warnings = _warnings.warnings_of(design, COLUMNS, _design.requested_marks(found.atoms))
    assert len(warnings) == told and all(("'cost'" in each) is ("cost" in str(specification)) for each in warnings)


async def test_a_specification_that_cannot_be_drawn_is_reported() -> None:
    with pytest.raises(_drawing.DrawingFailed):
        await _drawing.draw({"mark": "no such mark"})
    with pytest.raises(_drawing.DrawingFailed):
        await _drawing.draw({"mark": "bar"}, 0.01)


@pytest.mark.parametrize(("shows", "at"), [
    ('<show column="nope"/>', 1),
    ('<show column="sales" on="x"/><show column="region" on="x"/>', 2),
    ('<show column="sales"/><show column="sales"/>', 2),
])  # fmt: skip
def test_contradictions_that_no_schema_expresses_are_found(shows: str, at: int) -> None:
    root = parse_xml(f"<chart>{shows}</chart>", _design.SCHEMA)
    assert not isinstance(root, tuple)
    faults = _design.specification_faults(_design.specification_of(root), COLUMNS)
    assert faults[0]["path"].startswith(f"/chart/show[{at}]")


async def test_a_plan_that_cannot_be_read_is_told_with_its_places() -> None:
    checked: Any = (await check_plan.run({"xml": "<plan><bogus/></plan>"}, context(check_plan.card))).output
    assert not checked["ok"] and "bogus" in json.dumps(checked["faults"])
