"""The five topologies: their manifests and pictures, and a real turn for every label of every router."""

import asyncio
import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perdure.contracts.approvals import PauseKind, VerdictState
from perdure.contracts.turns import Limits, OnSpent
from perdure.contracts.values import canonical_json
from perdure.graph import compile as compile_module
from perdure.graph.manifest import lines_of, manifest_of, mermaid_of
from perdure.graph.registry import names, spec
from perdure.graph.spec import FRESH, RENEWALS, Fork, Outcome, State, Switch, Topology
from perdure.graph.validate import validate
from tests.doubles.fake_context import CALM
from tests.doubles.fake_turn import FakeTurn, Says
from tests.topologies import test_clarify_solve as clarify
from tests.topologies import test_context_assembly as assembly
from tests.topologies import test_decision_hub as hub
from tests.topologies import test_skill_pipeline_nodes as pipeline
from tests.topologies import test_tool_loop as loop
from tests.topologies.played import PAY, Played, _leg, begin, held, turn
from tests.topologies.test_checkpoints import FORCED


@pytest.mark.parametrize("name", names())
def test_a_topology_is_valid_wired_as_its_manifest_says_and_resumes_where_it_pauses(name: str) -> None:
    topology = spec(name)
    assert validate(topology) == ()
    assert held(name).wired_edges() == tuple(sorted({(line.source, line.target) for line in lines_of(topology)}))
    manifest = manifest_of(topology)
    assert json.loads(canonical_json(manifest)) == manifest
    resumes = [entry for entry in topology.entries if entry not in (FRESH, *RENEWALS)]
    assert bool(resumes) == any(node.pauses for node in topology.nodes)
    assert set(resumes) <= {kind.value for kind in PauseKind}


@pytest.mark.parametrize("name", names())
def test_the_drawing_equals_the_reviewed_one(name: str) -> None:
    drawn = mermaid_of(manifest_of(spec(name)))
    reviewed = (Path(__file__).parent / "golden" / f"{name}.mmd").read_text()
    assert drawn == reviewed, f"{name} is drawn differently now; look at it, then put it in {name}.mmd:\n{drawn}"


def test_a_manifest_names_entries_limits_and_what_the_statuses_mean_and_holds_a_nested_topology() -> None:
    manifest = manifest_of(spec("skill_pipeline"))
    assert manifest["entries"] == {
        "fresh": "system_prompt_node",
        "approval": "resume_guard",
        "renewed": "initial_llm_call",
        "renewed_synthesis": "synthesis_llm_call",
    }
    assert manifest["limits"] == {"max_steps": 500, "max_iterations": 20, "continuations": 2}
    assert manifest_of(spec("decision_hub"))["limits"] == {"max_steps": 20}
    assert manifest["statuses"] == {"pending": "running", "awaiting_hitl": "awaiting"}
    assert manifest["version"] == 7
    nodes: Any = manifest_of(spec("clarify_solve"))["nodes"]
    assert [node["sub"]["name"] for node in nodes if "sub" in node] == ["viz"]


CUT = (loop.cut("a"), Says("b"))
ASKED = {"limits": Limits(max_tokens=15, on_spent=OnSpent.ASK)}
BAD = clarify.says(xml="<bad/>")
ANSWERS: dict[PauseKind, dict[str, Any]] = {PauseKind.CLARIFICATION: {"text": "a"}}
ANSWERS[PauseKind.CLIENT_RUN] = clarify.HANDED_IN
TURNS: dict[str, list[FakeTurn]] = {
    "skill_pipeline": [
        *(made for made, *_ in pipeline.PLAIN.values()),
        *(turn(*CUT), pipeline.skilled(pipeline.SELECTS, *CUT)),
        *(turn(Says("", (PAY,)), Says("paid")), turn(Says("a"), Says("b"), metadata=FORCED)),
        *(turn(pipeline.LOOKS, **ASKED), pipeline.skilled(pipeline.SELECTS, **ASKED)),
    ],
    "tool_loop": [*(made for made, *_ in loop.ALONE.values()),
                  *(loop.turn(loop.LOCKS, Says("locked"), toolsets=loop.WRITES), loop.turn(*CUT))],
    "context_assembly": [
        assembly.turn(assembly.context(), assembly.BOOKS, Says("booked")),
        assembly.turn(assembly.context(catalogue=assembly.broken)),
        assembly.turn(replace(assembly.context(), verdicts=CALM | {"safety": {"hijacked": True}})),
    ],
    "decision_hub": [hub.hub(Says("fine"), facts=hub.BOTH, said=hub.STATED), hub.hub(Says(problem=hub.AWAY))],
    "clarify_solve": [
        *(made for made, *_ in clarify.AT_ONCE.values()),
        clarify.turn(clarify.kind(), clarify.plan(), clarify.XML, clarify.MARKS, clarify.DONE),
        clarify.turn(clarify.kind("transformation"), *[clarify.plan(f"<breaks{n}/>") for n in range(3)], clarify.DONE),
        clarify.turn(clarify.kind(), *[clarify.plan("<bad/>")] * 3, clarify.DONE),
        clarify.turn(clarify.kind(), *[clarify.FAULTY] * 6, clarify.DONE),
        clarify.turn(clarify.kind(), clarify.plan(asks=True), clarify.plan(), *[BAD] * 4, clarify.DONE),
        clarify.turn(clarify.kind(), clarify.plan(), clarify.XML, clarify.MARKS, metadata=clarify.CLIENT),
    ],
}  # fmt: skip


async def play_through(made: FakeTurn, of: str) -> Played:
    """A turn that looks in vain at each pause before people say yes to all that it asks."""
    played = await begin(deepcopy(made), of)
    for _ in range(3):
        if played.outcome() is not Outcome.AWAITING:
            break
        asked = [*played.turn.book.values()]
        kind = next((each for each in PauseKind if each.value == asked[-1].kind.value), PauseKind.APPROVAL)
        await _leg(played, kind.value, played.run.step)
        state = VerdictState.ANSWERED if kind in ANSWERS else VerdictState.APPROVED
        for record in asked:
            played.turn.decide(record.call_id, state, args=ANSWERS.get(kind))
        await _leg(played, kind.value, played.run.step)
    return played


@pytest.mark.parametrize("name", names())
async def test_real_turns_take_every_label_of_every_router_and_side_by_side_end_as_they_do_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: set[tuple[str, str]] = set()
    choose = compile_module.choose_targets

    async def listen(edge: Fork | Switch, state: State) -> tuple[str, ...]:
        if isinstance(edge, Switch):
            taken.add((edge.source, await edge.router(state)))
        return await choose(edge, state)

    monkeypatch.setattr(compile_module, "choose_targets", listen)
    alone = [await play_through(made, name) for made in TURNS[name]]
    assert taken == _labels(spec(name))
    together = await asyncio.gather(*(play_through(made, name) for made in TURNS[name]))
    assert [(each.state, each.traces()) for each in together] == [(each.state, each.traces()) for each in alone]
    for each in together:
        assert set(each.state) == {field.name for field in spec(name).state.fields}


def _labels(topology: Topology) -> set[tuple[str, str]]:
    inner = [node.run.topology for node in topology.nodes if not callable(node.run)]
    own = {(edge.source, label) for edge in topology.edges if isinstance(edge, Switch) for label in edge.targets}
    return own.union(*(_labels(one) for one in inner))
