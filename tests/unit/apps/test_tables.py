"""Plans on tables: read from XML without traps, carried out step by step, in a process of their own, or refused."""

import asyncio
import json
import random
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.contracts.memory import client_tables_fault
from perdure.core.memory.files import check_content
from perdure.sdk.tables import Plan, TableError, profile_of, read_csv, read_plan, run_plan
from perdure.sdk.tables import isolation as confined
from perdure.sdk.tables.client_side import ClientTable, ClientTurn, finish, finish_async
from perdure.sdk.tables.execution import read_formula
from perdure.sdk.tables.isolation import TableFile, profile_in_subprocess, run_plan_in_subprocess
from perdure.sdk.tables.plan import Derive, Filter, Group, JoinWith, Pivot, Summary
from perdure.sdk.tables.reading import rows_to_show, warnings_to_show
from tests.eventually import until

TABLE = read_csv(b"side,n,day\nN,3,2024-01-01\nS,4,2024-01-02\nN,5,2024-01-03\n")
LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
GAPS = read_csv(b"side,n\nN,3\nN,\nS,\nS,NaN\n,4\nW,inf\nW,2.5\n\n")
WAITS: Any = SimpleNamespace(has_ended=False, waiting_for=SimpleNamespace(kind="client_run", ids=["q"]))
ASKED: Any = SimpleNamespace(asked={"plan": ""})
ON = '<on left="side" right="key"/>'
TURNED = '<on left="key" right="side"/>'
SUM = '<group><by column="side"/><aggregate column="n" function="sum" as="t"/></group>'


def planned(steps: str) -> Plan:
    plan = read_plan(f"<plan>{steps}</plan>")
    assert isinstance(plan, Plan), plan
    return plan


def rows_after(steps: str, table: pl.DataFrame = TABLE, **others: pl.DataFrame) -> list[dict[str, Any]]:
    return run_plan(planned(steps), {"main": table, **others}, "main").table.to_dicts()


@pytest.mark.parametrize(("steps", "left"), [
    ('<filter where="n &gt; 3 and side in [&quot;N&quot;]"/>', [{"side": "N", "n": 5}]),
    (SUM, [{"side": "N", "t": 8}, {"side": "S", "t": 4}]),
    (f'{SUM}<sort><key column="t"/></sort><limit rows="1"/>', [{"side": "S", "t": 4}]),
    ('<aggregate column="n" function="mean" as="m"/>', [{"m": 4.0}]),
    ('<derive as="m" value="if_else(n &gt; 3, n * 2, 0) + month(day)"/>', [{"m": 1}, {"m": 9}, {"m": 11}]),
    (f'{SUM}<window function="share" column="t" as="s"/>', [{"side": "N", "s": 2 / 3}, {"side": "S", "s": 1 / 3}]),
    ('<window function="running_sum" column="n" as="r"><by column="side"/><order column="day"/></window>',
        [{"n": 3, "r": 3}, {"n": 4, "r": 4}, {"n": 5, "r": 8}]),
    ('<window function="rank" column="n" as="r"/>', [{"r": 3}, {"r": 2}, {"r": 1}]),
    ('<window function="previous" column="n" as="p"/>', [{"p": None}, {"p": 3}, {"p": 4}]),
    ('<window function="moving_mean" column="n" as="p" rows="2"/>', [{"p": 3.0}, {"p": 3.5}, {"p": 4.5}]),
    ('<pivot index="n" columns="side" values="n" function="count"/>', [{"n": 3, "N": 1, "S": None}]),
    ('<derive as="d" value="day - if_else(n &gt; 3, day, day)"/>', [{"d": 0.0}]),
    ('<derive as="d" value="-n"/>', [{"d": -3}]),
    ('<aggregate column="side" function="distinct" as="d"/>', [{"d": 2}]),
    (SUM.replace("sum", "count") + '<derive as="d" value="t - 3"/>', [{"d": -1}, {"d": -2}]),
    (f'<join table="names" how="left">{ON}</join>', [{"name": "North"}, {"name": "South"}, {"name": "North"}]),
    (f'<input name="names"/><join table="main">{TURNED}</join>', [{"name": "North"}, {"name": "North"}]),
])  # fmt: skip
def test_each_step_transforms_its_table(steps: str, left: list[dict[str, Any]]) -> None:
    rows = rows_after(steps, names=read_csv(b"key,name\nN,North\nS,South\n"))
    for row, wanted in zip(rows, left, strict=False):
        assert {name: row[name] for name in wanted} == wanted
    assert len(rows) >= len(left)


@pytest.mark.parametrize(("steps", "names"), [
    ('<filter where="m &gt; 1"/>', "1 filter 'm'"),
    ('<limit rows="2"/><filter where="__import__(&quot;os&quot;)"/>', "2 filter"),
    ('<derive as="a" value="n.__class__"/>', "1 derive"), ('<derive as="a" value="n ** 99"/>', "1 derive"),
    ('<derive as="a" value="[x for x in y]"/>', "1 derive"), ('<derive as="a" value="(((((n"/>', "1 derive"),
    (f'<derive as="a" value="{"-" * 30}n"/>', "1 derive 20"), ('<derive as="a" value="n + side"/>', "1 derive"),
    ('<derive as="a" value="year(n)"/>', "1 derive"),
    ('<aggregate column="side" function="sum" as="a"/>', "sum 'side'"), ('<filter where="n &gt; 100"/>', ""),
    ('<join table="away"><on left="side" right="side"/></join>', "1 join 'away'"),
    ('<join table="main"><on left="side" right="gone"/></join>', "1 join 'gone'"),
    ('<join table="main"><on left="side" right="n"/></join>', "1 join"),
    ('<group><by column="n"/><aggregate column="n" function="sum" as="n"/></group>', "1 group 'n'"),
    ('<input name="away"/>', "'away' main"), ('<input name="main" visible="false"/>', "'main'"),
])  # fmt: skip
def test_an_impossible_step_is_reported_with_its_position(steps: str, names: str) -> None:
    with pytest.raises(TableError) as refused:
        rows_after(steps)
    assert all(name in refused.value.message for name in names.split())


def test_a_join_or_pivot_that_would_explode_is_refused_beforehand() -> None:
    wide = pl.DataFrame({"k": [1] * 3_000, "v": range(3_000)})
    with pytest.raises(TableError, match="2000000"):
        run_plan(Plan((JoinWith("main", ("k",), ("k",)),)), {"main": wide}, "main")
    with pytest.raises(TableError, match="100"):
        run_plan(Plan((Pivot("k", "v", "v", "sum"),)), {"main": wide}, "main")


def test_repeatedly_concatenated_texts_are_refused_beforehand() -> None:
    long = pl.DataFrame({"t": ["x" * 1_000] * 4_000})
    nine = "+".join(["t"] * 9)
    assert run_plan(Plan((Derive("t", nine),)), {"main": long}, "main").table["t"].str.len_chars().max() == 9_000
    for steps in ((Derive("t", nine), Derive("t", nine)), (Derive("u", "+".join([f"({nine})"] * 9)),)):
        with pytest.raises(TableError, match="256"):
            run_plan(Plan(steps), {"main": long}, "main")


def test_times_are_names_and_spans_are_days() -> None:
    table = read_csv(b"at,start,end\n10:00:00,2024-01-01,2024-01-03\n11:30:00,2024-01-01,2024-01-02\n")
    left = run_plan(planned('<derive as="days" value="end - start"/>'), {"main": table}, "main").table
    assert left["days"].to_list() == [2.0, 1.0]
    assert [column.kind for column in profile_of(left)] == ["nominal", "temporal", "temporal", "quantitative"]


def test_rows_are_exported_in_utc_and_an_infinite_number_is_missing() -> None:
    table = read_csv(b"at,n\n2024-01-01T05:30:00,1\n2024-01-02T05:30:00,0\n")
    rows = rows_to_show(run_plan(planned('<derive as="r" value="1 / n"/>'), {"main": table}, "main").table)
    assert rows[0] == {"at": "2024-01-01T05:30:00.000Z", "n": 1, "r": 1.0} and rows[1]["r"] is None
    assert rows_to_show(TABLE)[0]["day"] == "2024-01-01"
    many = pl.DataFrame({"n": range(12_001)})
    assert len(rows_to_show(many)) == 4_001 and not warnings_to_show(TABLE)
    assert all(count in warnings_to_show(many)[0] for count in ("12001", "4001"))


@pytest.mark.parametrize(("text", "name"), [
    ("", ""), ("select * from t", ""), ("<plan", ""),
    ("<plan><bogus/></plan>", "bogus"), ("<plan><limit/></plan>", "rows"),
    ('<plan><limit rows="0"/></plan>', "/plan/limit"), ("<chart/>", "chart"),
    ('<!DOCTYPE p [<!ENTITY a "b">]><plan>&a;</plan>', ""), ('<!DOCTYPE p SYSTEM "file:///etc/passwd"><plan/>', ""),
    ('<!DOCTYPE p [<!ENTITY x SYSTEM "file:///etc/passwd">]><plan>&x;</plan>', ""),
    ("<plan>" + "<limit rows='1'/>" * 3_000 + "</plan>", ""),
    ("<plan>" + "<a>" * 5_000 + "</a>" * 5_000 + "</plan>", ""), ("<a>" * 2_000 + "</a>" * 2_000, ""),
    (f'<!DOCTYPE p [<!ENTITY l0 "ha">{LAUGHS}]><plan>&l9;</plan>', ""),
])  # fmt: skip
def test_xml_that_does_not_fit_is_reported_with_its_place_and_no_entity_is_read(text: str, name: str) -> None:
    faults = read_plan(text)
    assert isinstance(faults, tuple) and faults
    assert name in " ".join(f"{fault.path} {fault.reason}" for fault in faults)
    assert "root:" not in str(faults), "a line of /etc/passwd"


@pytest.mark.parametrize("content", [b"a\x00b\n1\n", b"a,b\n", b"a,b\n1,2,3\n4\n5,6,7,8\n"])
def test_an_unreadable_table_is_a_fault(content: bytes) -> None:
    with pytest.raises(TableError):
        read_csv(content)


def test_a_profile_tells_kinds_counts_and_rounded_ranges_and_no_cell_of_a_text() -> None:
    table = read_csv(b"name,n,day,ok\nsecret,123456,2024-01-01,true\nhidden,,2024-01-02,false\n")
    columns = [column.as_json() for column in profile_of(table)]
    assert [column["kind"] for column in columns] == ["nominal", "quantitative", "temporal", "boolean"]
    assert columns[1]["least"] == 123_500.0 and columns[1]["nulls"] == 1
    assert "secret" not in str(columns) and "hidden" not in str(columns) and "2024" not in str(columns)


@settings(deadline=None)
@given(st.text("n()+-*/<>=\"'[]., orandside_ifel0123", max_size=40))
def test_no_text_is_run_as_python_and_every_refusal_is_a_message(text: str) -> None:
    try:
        expression = read_formula(text, TABLE.columns)
    except TableError as refused:
        assert refused.message
    else:
        assert isinstance(expression, pl.Expr)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 60))
def test_groups_sum_to_the_whole_and_filters_partition_the_rows(seed: int, size: int) -> None:
    chance = random.Random(seed)
    rows = range(size)
    table = pl.DataFrame({"k": [chance.choice("abc") for _ in rows], "v": [chance.randint(-9, 9) for _ in rows]})
    grouped = run_plan(Plan((Group(("k",), (Summary("v", "sum", "v"),)),)), {"main": table}, "main")
    assert grouped.table["v"].sum() == table["v"].sum()
    for where, height in (("v > 0", (table["v"] > 0).sum()), ("not (v > 0)", (table["v"] <= 0).sum())):
        with nullcontext() if height else pytest.raises(TableError):  # where no row is left
            assert run_plan(Plan((Filter(where),)), {"main": table}, "main").table.height == height


def test_the_sum_of_nothing_is_missing_and_what_is_left_out_is_reported() -> None:
    done = run_plan(planned(SUM), {"main": GAPS}, "main")
    assert done.table.rows() == [("N", 3.0), ("S", None), (None, 4.0), ("W", 2.5)]
    (warning,) = done.warnings
    assert all(part in warning for part in ("4", "7", "'n'"))
    assert [row["side"] for row in rows_to_show(done.table)] == ["N", "S", "(missing)", "W"]
    first = rows_after('<pivot index="n" columns="side" values="n" function="sum"/>', GAPS)[0]
    assert "(missing)" in first and first["N"] == 3.0


def test_a_result_of_missing_values_is_missing_and_so_is_an_infinite_one() -> None:
    for function in ("mean", "median", "min", "max"):
        assert {row["side"]: row["t"] for row in rows_after(SUM.replace('"sum"', f'"{function}"'), GAPS)}["S"] is None
    assert rows_after('<aggregate column="side" function="distinct" as="t"/>', GAPS) == [{"t": 3}]
    assert GAPS["n"].null_count() == 4
    assert rows_after('<derive as="r" value="n / 0"/><aggregate column="r" function="max" as="r"/>') == [{"r": None}]
    with pytest.raises(TableError, match="n"):
        rows_after('<aggregate column="n" function="sum" as="t"/>', read_csv(b"side,n\nN,\nS,\n"))


@pytest.mark.parametrize(("cells", "held"), [
    (("18446744073709551616", "1"), (18446744073709551616, 1)), (("99999999999999999999", "1.5"), (1e20, 1.5)),
    (("9" * 45, "1"), (1e45, 1.0)), (("9" * 45, "x"), ("9" * 45, "x")), (("00123", "1"), ("00123", "1")),
    (("007.50", "1"), ("007.50", "1")), (("0", "-0.5"), (0.0, -0.5)), (('"0815"', "1"), ("0815", "1")),
])  # fmt: skip
def test_reading_loses_no_digit_of_a_number_or_code(cells: tuple[str, str], held: tuple[Any, Any]) -> None:
    assert read_csv(f"k,v\na,{cells[0]}\nb,{cells[1]}\n".encode())["v"].to_list() == [held[0], held[1]]


def test_whole_numbers_of_more_than_64_bits_are_summed_exactly() -> None:
    most = 2**63 - 1
    table = read_csv(f"side,n\nN,{most}\nN,{most}\nS,1\n".encode())
    assert rows_after(SUM, table) == [{"side": "N", "t": 2 * most}, {"side": "S", "t": 1}]
    assert rows_after('<derive as="d" value="n * n"/>', table)[0]["d"] == most**2
    assert rows_after('<window function="running_sum" column="n" as="d"/>', table)[1]["d"] == 2 * most
    left = run_plan(planned(SUM), {"main": table}, "main").table
    assert rows_to_show(left)[0]["t"] == float(2 * most)
    assert ["'t'" in each for each in warnings_to_show(left)] == [True] and warnings_to_show(TABLE) == []


@pytest.mark.parametrize("end", [b"\r", b"\r\n", b"\n"])
def test_every_line_ending_is_read_and_semicolons_can_separate_cells(end: bytes) -> None:
    lines = [b"side,n", b'"N\rS",3', b"", b"S,4", b""]
    assert read_csv(end.join(lines)).to_dicts() == [{"side": "N\rS", "n": 3}, {"side": "S", "n": 4}]
    content = end.join([b"side;price;code", b'"N;S";1,5;007', b"S;-2;012", b""])
    check_content("text/csv", content)
    rows = [{"side": "N;S", "price": 1.5, "code": "007"}, {"side": "S", "price": -2.0, "code": "012"}]
    assert read_csv(content).to_dicts() == rows


def test_rows_can_be_short_and_columns_can_change_their_type() -> None:
    assert read_csv(b"side,n\nN,3\rS,4\r\n").height == 2
    assert read_csv(b"a;b,n\nx;y,3\n").to_dicts() == [{"a;b": "x;y", "n": 3}], "one comma makes semicolons text"
    assert read_csv(b"k,v\n" + b"a,1\n" * 10_001 + b"b,2.5\n")["v"][-1] == 2.5
    assert read_csv(b"k,v\n" + b"a,2024-01-01\n" * 10_001 + b"b,soon\n")["v"][-1] == "soon"


LINES = "customer,side,amount,day\n" + "".join(
    f"secret-{n}-{n * 7919 % 997:03d},{'east' if n % 2 else 'west'}-ward,{73_519 + n},2024-01-0{1 + n % 9}\n"
    for n in range(9)
)
CELLS = [cell for line in LINES.splitlines()[1:] for place, cell in enumerate(line.split(",")) if place != 2]
STEPS = (
    '<pivot index="day" columns="side" values="amount" function="sum"/>',
    '<pivot index="side" columns="customer" values="amount" function="max"/>',
    '<pivot index="side" columns="day" values="customer" function="min"/>',
    '<group><by column="side"/><aggregate column="customer" function="max" as="c"/></group>',
    '<filter where="amount &gt; 73520"/>', '<filter where="amount &gt; 999999"/>',
    '<filter where="customer &gt; 3"/>', '<filter where="nothing == 1"/>',
    '<derive as="c" value="number(customer) + amount"/>', '<derive as="c" value="customer + side"/>',
    '<derive as="c" value="year(customer)"/>', '<aggregate column="customer" function="sum" as="t"/>',
    '<window function="share" column="customer" as="s"/>', '<window function="previous" column="side" as="s"/>',
    '<sort><key column="side 1"/></sort>', '<limit rows="1"/>',
    '<join table="ledger"><on left="customer" right="customer"/></join>',
    '<join table="ledger"><on left="customer" right="amount"/></join>',
)  # fmt: skip


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("home") / "ledger.csv"
    path.write_text(LINES)
    return path


@settings(deadline=None)
@given(st.lists(st.sampled_from(STEPS), min_size=1, max_size=4))
def test_no_plan_exports_a_text_cell(ledger: Path, steps: list[str]) -> None:
    told = json.dumps(ClientTable.read(ledger).execute_plan(f"<plan>{''.join(steps)}</plan>"))
    assert [cell for cell in CELLS if cell in told] == [], told


def test_the_columns_of_a_pivot_go_by_numbers_and_have_their_names_in_the_picture(ledger: Path) -> None:
    table = ClientTable.read(ledger)
    handed_in: Any = table.execute_plan(f"<plan>{STEPS[0]}</plan>")
    assert [column["name"] for column in handed_in["columns"]] == ["day", "side 1", "side 2"]
    encoding = {"x": {"field": "day", "title": "day"}, "y": {"field": "side 1", "title": "side 1"}}
    drawn = table.fill_specification({"mark": "bar", "encoding": encoding})
    assert drawn["encoding"]["y"] == {"field": "side 1", "title": "west-ward"}
    assert drawn["data"]["values"][0] == {"day": "2024-01-01", "side 1": 73_519, "side 2": None}


def test_left_out_rows_are_exported_and_long_numbers_drawn(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("side,n\nN,18446744073709551616\nN,\nS,\n,5\n")
    table = ClientTable.read(path)
    assert not client_tables_fault(table.describe())
    sum_as_n = SUM.replace('"t"', '"n"')
    done: Any = table.execute_plan(f"<plan>{sum_as_n}</plan>")
    rounded, left_out = done["warnings"]
    assert "'n'" in rounded and all(part in left_out for part in ("2", "4", "'n'"))
    assert [column["nulls"] for column in done["columns"]] == [1, 1]
    encoding = {"x": {"field": "side", "type": "nominal"}, "y": {"field": "n", "type": "quantitative"}}
    turn: Any = SimpleNamespace(output={"specification": {"mark": "bar", "encoding": encoding}})
    made = ClientTurn(turn, table)
    assert made.specification is not None
    assert [row["side"] for row in made.specification["data"]["values"]] == ["N", "S", "(missing)"]
    assert made.png()[:4] == b"\x89PNG"


def test_tables_beside_it_are_reported_and_joined(ledger: Path, tmp_path: Path) -> None:
    names = tmp_path / "names.csv"
    names.write_text("ward,name\neast-ward,East\nwest-ward,West\n")
    table = ClientTable.read(ledger, names)
    assert not client_tables_fault(table.describe())
    done = table.execute_plan('<plan><join table="names"><on left="side" right="ward"/></join></plan>')
    assert done["ok"] is True and table.last_result is not None
    assert set(table.last_result.table["name"]) == {"East", "West"}
    with pytest.raises(TableError):
        ClientTable.read(ledger, ledger)


@pytest.mark.parametrize("content", ["a,a\n1,2\n", "a,\n1,2\n", 'a,b\n1,"x\n', "a,b\n1\n", ""])
def test_a_table_that_an_upload_would_refuse_is_a_fault_here_too(tmp_path: Path, content: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(content)
    with pytest.raises(TableError):
        ClientTable.read(path)


def never_looking(answers: list[str], awaited: bool) -> Any:
    """A client whose turn goes on waiting for what was handed in long ago."""

    def made(work: Callable[..., Any]) -> Callable[..., Any]:
        async def later(*given: Any, **named: Any) -> Any:
            return work(*given, **named)

        return later if awaited else work

    does = {"wait": lambda *_, **__: WAITS, "question": lambda *_: ASKED, "answer": lambda _, q, *__: answers.append(q)}
    return SimpleNamespace(turns=SimpleNamespace(**{name: made(work) for name, work in does.items()}))


async def test_a_client_that_never_polls_gets_a_timeout_and_the_question_one_answer(ledger: Path) -> None:
    answers: list[str] = []
    with pytest.raises(TimeoutError):
        finish(never_looking(answers, False), "t", ClientTable.read(ledger), timeout_seconds=0.3)
    with pytest.raises(TimeoutError):
        await finish_async(never_looking(answers, True), "t", ClientTable.read(ledger), timeout_seconds=0.3)
    assert answers == ["q", "q"], "once each"


SALES = TableFile("sales.csv", "text/csv", b"region,sales\nNorth,30\nSouth,10\n")
NAMES = TableFile("names.csv", "text/csv", b"key,name\nNorth,Upland\n")
BROKEN = TableFile("b.csv", "text/csv", b'a,b\n1,"\n')
JOIN = '<plan><join table="names.csv"><on left="region" right="key"/></join></plan>'


async def test_tables_are_profiled_and_invalid_ones_left_out_except_the_first() -> None:
    first, second, third = await profile_in_subprocess([SALES, BROKEN, NAMES])
    assert first is not None and first["rows"] == 2
    assert [each["name"] for each in first["columns"]] == ["region", "sales"]
    assert second is None and third is not None and third["rows"] == 1
    with pytest.raises(TableError):
        await profile_in_subprocess([BROKEN, SALES])


async def test_a_plan_is_carried_out_with_the_tables_that_it_joins() -> None:
    ran = await run_plan_in_subprocess([SALES, NAMES, BROKEN], JOIN)
    assert ran["rows"] == 1 and '"name": "Upland"' in ran["drawn"]
    with pytest.raises(TableError):
        await run_plan_in_subprocess([SALES], "<nonsense/>")
    with pytest.raises(TableError, match=r"names\.csv"):
        await run_plan_in_subprocess([SALES], JOIN)


async def test_a_table_that_uses_all_memory_ends_only_its_process() -> None:
    wide = b",".join(b"c%d" % n for n in range(1_000_000)) + b"\n" + b",".join([b"1"] * 1_000_000)
    before = psutil.Process().memory_info().rss
    with pytest.raises(TableError, match="2 GiB"):
        await profile_in_subprocess([TableFile("wide.csv", "text/csv", wide)])
    assert psutil.Process().memory_info().rss - before < 100 * 2**20
    assert (await profile_in_subprocess([SALES]))[0] is not None


async def test_a_job_has_a_time_limit_and_an_abandoned_one_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[subprocess.Popen[bytes]] = []
    taken = confined._pool._take_process

    def noted() -> "subprocess.Popen[bytes]":
        begun.append(taken())
        return begun[-1]

    monkeypatch.setattr(confined._ProcessPool, "_take_process", lambda _: noted())
    rows = b"a\n" + b"1\n" * 1_000_000
    with pytest.raises(TableError, match="0 s"):
        await profile_in_subprocess([TableFile("long.csv", "text/csv", rows)], seconds=0.01)
    job = asyncio.create_task(profile_in_subprocess([TableFile("long.csv", "text/csv", rows)]))
    await until(lambda: len(begun) == 2)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    await until(lambda: all(process.poll() is not None for process in begun))


async def test_the_process_gets_no_secrets_and_the_next_one_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_SECRET_MODEL", "hunter2")
    bench = confined._ProcessPool()  # a job that another test gave up may still add a process to the common one
    monkeypatch.setattr(confined, "_pool", bench)
    await profile_in_subprocess([SALES])
    (waiting,) = bench.waiting
    assert set(psutil.Process(waiting.pid).environ()) <= {"POLARS_MAX_THREADS", "LC_CTYPE"}
    await profile_in_subprocess([SALES])
    assert waiting.poll() is not None  # a process is used for one job
    assert len(bench.waiting) == 1
    bench.close()
