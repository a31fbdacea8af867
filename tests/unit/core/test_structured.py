"""Objects that a model was to answer with, and what a stage of an agent changes of a call."""

from typing import Any

import pytest

from perdure.contracts.agents import AgentStage
from perdure.contracts.calls import OutputForm
from perdure.contracts.errors import Problem
from perdure.core.agents.models import with_stage
from perdure.core.calls.arguments import read_object
from perdure.core.calls.retries import TRIES, is_hopeless

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"kind": {"type": "string", "enum": ["a", "b"]}},
    "required": ["kind"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("text", ['{"kind": "a"}', '```json\n{"kind": "a"}\n```', '{"kind": "a",}', "{'kind': 'a'}"])
def test_an_object_is_read_where_it_fits_after_one_repair_at_most(text: str) -> None:
    assert read_object(text, SCHEMA).args == {"kind": "a"}


@pytest.mark.parametrize("text", ["", "a", "[]", '{"kind": "c"}', '{"kind": "a", "more": 1}', '{"kind": "a"', "{}"])
def test_what_does_not_fit_is_no_object_and_says_why(text: str) -> None:
    read = read_object(text, SCHEMA)
    assert read.fault is not None and "argument" not in read.fault.split(":")[0]


def test_there_are_six_tries_in_turn() -> None:
    assert TRIES == (OutputForm.JSON_SCHEMA, OutputForm.FUNCTION) * 3


@pytest.mark.parametrize(
    ("code", "hopeless"),
    [("model_auth", True), ("model_not_found", True), ("stopped", True), ("model_timeout", False), ("other", False)],
)
def test_only_what_another_try_would_meet_again_is_hopeless(code: str, hopeless: bool) -> None:
    assert is_hopeless(Problem(code=code, message="no")) is hopeless


STAGES = {
    "base": AgentStage(model_params={"temperature": 0, "seed": 1}),
    "own": AgentStage(like="base", model_params={"seed": None, "top_p": 0.5}),
    "round": AgentStage(like="trip", model_params={"a": 1}),
    "trip": AgentStage(like="round", model_params={"a": 2, "b": 3}),
}


@pytest.mark.parametrize(
    ("stage", "params"),
    [
        ("", {"temperature": 1, "max_tokens": 9}),
        ("unknown", {"temperature": 1, "max_tokens": 9}),
        ("base", {"temperature": 0, "seed": 1, "max_tokens": 9}),
        ("own", {"temperature": 0, "top_p": 0.5, "max_tokens": 9}),
        ("round", {"temperature": 1, "max_tokens": 9, "a": 1, "b": 3}),
    ],
)
def test_parameters_are_laid_over_each_other_and_null_takes_one_away(stage: str, params: dict[str, Any]) -> None:
    assert with_stage({"temperature": 1, "max_tokens": 9}, STAGES, stage) == params
