"""Alarms about the way that a turn took."""

import pytest

from perdure.core.events.traces import Ways, alarms_of
from perdure.graph.registry import TOPOLOGIES
from perdure.worker.telemetry import ways_of
from tests.topologies.specs.decision_hub import ANSWER, BEGIN, FAILURE

HUB = ways_of(next(one for one in TOPOLOGIES if one.name == "decision_hub"))
PIPELINE = ways_of(next(one for one in TOPOLOGIES if one.name == "skill_pipeline"))
FORKED = Ways(
    edges=frozenset({("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")}),
    entries=frozenset({"a"}),
    terminal=frozenset({"d"}),
    parallel=True,
)


@pytest.mark.parametrize(
    ("ways", "nodes", "expected"),
    [
        (HUB, f"{BEGIN} {ANSWER} format_response_node", []),
        (HUB, f"{BEGIN} {FAILURE}", []),
        (HUB, f"{BEGIN} format_response_node", []),
        (HUB, "router_node model_call_node", ["unexpected_routing"]),
        (HUB, f"{BEGIN} {FAILURE} format_response_node", ["unexpected_routing", "multiple_terminal_nodes"]),
        (PIPELINE, "system_prompt_node memory_node resume_guard initial_llm_call output_format", []),
        (PIPELINE, "system_prompt_node memory_node resume_guard output_format resume_guard output_format", []),
        (FORKED, "a c b d", []),
        (FORKED, "a d", ["unexpected_routing"]),
        (FORKED, "a b sub/x c d", []),
    ],
)
def test_the_table_of_ways(ways: Ways, nodes: str, expected: list[str]) -> None:
    assert [alarm.type.value for alarm in alarms_of(nodes.split(), ways, "t")] == expected


def test_the_deciding_node_has_no_span_and_every_other_has() -> None:
    assert HUB.unspanned == {"decision_logic_node"} and PIPELINE.unspanned == frozenset()
