"""A table that stays at home: what is told of it holds no cell of a text, whatever the plan; nothing waits for ever."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.contracts.memory import why_no_tables
from perdure.sdk.tables import TableTrouble
from perdure.sdk.tables.client_side import HomeTable, Made, finish, finish_async

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
    '<filter where="amount &gt; 73520"/>',
    '<filter where="amount &gt; 999999"/>',
    '<filter where="customer &gt; 3"/>',
    '<filter where="nothing == 1"/>',
    '<derive as="c" value="number(customer) + amount"/>',
    '<derive as="c" value="customer + side"/>',
    '<derive as="c" value="year(customer)"/>',
    '<aggregate column="customer" function="sum" as="t"/>',
    '<window function="share" column="customer" as="s"/>',
    '<window function="previous" column="side" as="s"/>',
    '<sort><key column="side 1"/></sort>',
    '<limit rows="1"/>',
    '<join table="ledger"><on left="customer" right="customer"/></join>',
    '<join table="ledger"><on left="customer" right="amount"/></join>',
)
SUM = '<group><by column="side"/><aggregate column="n" function="sum" as="n"/></group>'


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("home") / "ledger.csv"
    path.write_text(LINES)
    return path


def told_by(ledger: Path, steps: str) -> str:
    """What is handed in."""
    return json.dumps(HomeTable.read(ledger).carry_out(f"<plan>{steps}</plan>"))


@settings(deadline=None)
@given(st.lists(st.sampled_from(STEPS), min_size=1, max_size=4))
def test_no_cell_of_a_text_is_handed_in_whatever_the_plan(ledger: Path, steps: list[str]) -> None:
    told = told_by(ledger, "".join(steps))
    assert [cell for cell in CELLS if cell in told] == [], told


def test_the_columns_of_a_pivot_go_by_numbers_and_have_their_names_in_the_picture(ledger: Path) -> None:
    table = HomeTable.read(ledger)
    handed_in: Any = table.carry_out(f"<plan>{STEPS[0]}</plan>")
    assert [column["name"] for column in handed_in["columns"]] == ["day", "side 1", "side 2"]
    encoding = {"x": {"field": "day", "title": "day"}, "y": {"field": "side 1", "title": "side 1"}}
    drawn = table.drawn({"mark": "bar", "encoding": encoding})
    assert drawn["encoding"]["y"] == {"field": "side 1", "title": "west-ward"}
    assert drawn["data"]["values"][0] == {"day": "2024-01-01", "side 1": 73_519, "side 2": None}


def test_what_is_left_out_is_handed_in_with_the_rest_and_long_numbers_are_drawn(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("side,n\nN,18446744073709551616\nN,\nS,\n,5\n")
    table = HomeTable.read(path)
    assert not why_no_tables(table.described())
    done: Any = table.carry_out(f"<plan>{SUM}</plan>")
    rounded, left_out = done["warnings"]
    assert "'n'" in rounded and all(part in left_out for part in ("2", "4", "'n'"))
    assert [column["nulls"] for column in done["columns"]] == [1, 1]
    encoding = {"x": {"field": "side", "type": "nominal"}, "y": {"field": "n", "type": "quantitative"}}
    turn: Any = SimpleNamespace(output={"specification": {"mark": "bar", "encoding": encoding}})
    made = Made(turn, table)
    assert made.specification is not None
    assert [row["side"] for row in made.specification["data"]["values"]] == ["N", "S", "(missing)"]
    assert made.png()[:4] == b"\x89PNG"


def test_tables_that_lie_beside_it_are_told_and_joined(ledger: Path, tmp_path: Path) -> None:
    names = tmp_path / "names.csv"
    names.write_text("ward,name\neast-ward,East\nwest-ward,West\n")
    table = HomeTable.read(ledger, names)
    assert not why_no_tables(table.described())
    done = table.carry_out('<plan><join table="names"><on left="side" right="ward"/></join></plan>')
    assert done["ok"] is True and table.left is not None and set(table.left.table["name"]) == {"East", "West"}
    with pytest.raises(TableTrouble):
        HomeTable.read(ledger, ledger)


@pytest.mark.parametrize("content", ["a,a\n1,2\n", "a,\n1,2\n", 'a,b\n1,"x\n', "a,b\n1\n", ""])
def test_a_table_that_an_upload_would_refuse_is_trouble_here_too(tmp_path: Path, content: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(content)
    with pytest.raises(TableTrouble):
        HomeTable.read(path)


WAITS: Any = SimpleNamespace(has_ended=False, waiting_for=SimpleNamespace(kind="client_run", ids=["q"]))
ASKED: Any = SimpleNamespace(asked={"plan": ""})


def never_looking(answers: list[str]) -> Any:
    """A client whose turn goes on waiting for what was handed in long ago."""

    def answer(turn_id: str, request_id: str, *given: Any) -> None:
        answers.append(request_id)

    return SimpleNamespace(turns=SimpleNamespace(wait=lambda *_, **__: WAITS, question=lambda *_: ASKED, answer=answer))


def never_looking_async(answers: list[str]) -> Any:
    """The same, to be awaited."""
    blocking = never_looking(answers).turns

    def awaited(work: Callable[..., Any]) -> Callable[..., Any]:
        async def made(*args: Any, **given: Any) -> Any:
            return work(*args, **given)

        return made

    return SimpleNamespace(turns=SimpleNamespace(**{name: awaited(work) for name, work in vars(blocking).items()}))


async def test_a_turn_that_never_looks_ends_in_a_timeout_and_is_answered_once(ledger: Path) -> None:
    answers: list[str] = []
    with pytest.raises(TimeoutError):
        finish(never_looking(answers), "t", HomeTable.read(ledger), timeout_seconds=0.3)
    with pytest.raises(TimeoutError):
        await finish_async(never_looking_async(answers), "t", HomeTable.read(ledger), timeout_seconds=0.3)
    assert answers == ["q", "q"], "once each"
