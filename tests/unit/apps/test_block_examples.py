"""perdure/apps: examples of a card are held against what the block comes to, each at its line."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import JsonValue

from perdure.apps import Engine, Tried, load_app
from perdure.apps.code_blocks import difference
from perdure.contracts.skills import CodeBlock
from tests.unit.apps.problems import are_at, is_at, told
from tests.unit.apps.skill_app import STEEP_CARD, write_app

CARD = "skills/tea/blocks/steep.yaml"
INPUT_EXAMPLES = STEEP_CARD.replace("  required: [leaf]\n", "  required: [leaf]\n  examples:\n    - {leaf: green}\n", 1)
EXAMPLES = f"""{INPUT_EXAMPLES}examples:
  - input: {{leaf: black}}
    output: {{minutes: 3}}
  - input: {{leaf: white}}
"""


class Kitchen:
    """Tries as a sandbox would; `answers` are by leaf."""

    def __init__(self, **answers: Tried | None) -> None:
        self.answers = answers
        self.asked: list[tuple[str, list[str]]] = []

    def __call__(
        self, block: CodeBlock, inputs: Mapping[str, JsonValue], tables: Mapping[str, JsonValue]
    ) -> Tried | None:
        leaf = str(inputs["leaf"])
        self.asked.append((leaf, [*tables]))
        return self.answers.get(leaf, Tried({"minutes": 3.0}))


def problems(folder: Path, kitchen: Kitchen, card: str = EXAMPLES) -> list[str]:
    return told(load_app(write_app(folder, {CARD: card}), Engine(try_block=kitchen)))


def test_every_example_is_run_with_the_tables_that_the_block_needs(tmp_path: Path) -> None:
    kitchen = Kitchen()
    assert problems(tmp_path, kitchen) == []
    assert kitchen.asked == [("green", ["leaves"]), ("black", ["leaves"]), ("white", ["leaves"])]


def test_examples_are_no_part_of_what_is_published_and_are_not_run_unless_asked_for(tmp_path: Path) -> None:
    plain = load_app(write_app(tmp_path / "plain", {CARD: INPUT_EXAMPLES}))
    with_more = load_app(write_app(tmp_path / "more", {CARD: EXAMPLES}))
    assert told(with_more) == [] and with_more.agents == plain.agents


def test_a_result_that_is_not_the_one_given_is_told_at_the_line_of_the_one_given(tmp_path: Path) -> None:
    found = problems(tmp_path, Kitchen(black=Tried({"minutes": 4})))
    assert are_at(found, [f"{CARD}:19 minutes 4 3", "agents/host.yaml:4 tea"])


def test_an_example_that_fails_is_told_with_the_line_of_the_block(tmp_path: Path) -> None:
    found = problems(tmp_path, Kitchen(green=Tried(fault="KeyError: 'green'", line=5), white=Tried(fault="no")))
    assert are_at(found[:2], [f"{CARD}:10 KeyError green steep.py:5", f"{CARD}:20 no"])


def test_after_one_that_used_up_its_time_no_other_is_run(tmp_path: Path) -> None:
    kitchen = Kitchen(green=Tried(fault="the block was stopped after 5 s", spent=True))
    assert len(problems(tmp_path, kitchen)) == 2
    assert [leaf for leaf, _ in kitchen.asked] == ["green"]


def test_where_nothing_can_be_run_nothing_is_wrong(tmp_path: Path) -> None:
    assert problems(tmp_path, Kitchen(green=None)) == []


def test_an_example_that_is_no_object_is_told(tmp_path: Path) -> None:
    card = INPUT_EXAMPLES.replace("{leaf: green}", "green")
    assert is_at(problems(tmp_path, Kitchen(), card)[0], f"{CARD}:10")


@pytest.mark.parametrize(
    ("value", "expected", "found"),
    [
        ({"a": [1, {"b": "x"}]}, {"a": [1.0, {"b": "x"}]}, None),
        ({"a": True}, {"a": 1}, "a true 1"),
        ({"a": 0}, {"a": False}, "a 0 false"),
        ({"a": None}, {}, "a"),
        ({}, {"a": None}, "a"),
        ({"a": [1, 2]}, {"a": [1]}, "a 2 1"),
        ({"a": [{"b": 1}]}, {"a": [{"b": 2}]}, "a.0.b 1 2"),
        ({"a": {}}, {"a": []}, "a {} []"),
        ({"a": "x" * 300}, {"a": ""}, f"a {'x' * 118}…"),
    ],
)
def test_a_difference_has_its_place(value: JsonValue, expected: JsonValue, found: str | None) -> None:
    told_of = difference(value, expected)
    if found is None:
        assert told_of is None
    else:
        place, *values = found.split()
        assert told_of is not None and told_of.split()[0] == place and all(each in told_of for each in values)
