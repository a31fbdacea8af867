"""Registries of assembly tools: loaded by name, refused at boot with file and line."""

import shutil
from pathlib import Path
from textwrap import dedent

import pytest
from pydantic import ValidationError

from perdure.activities.providers.scripted import Script
from perdure.apps import SHIPPED, App, Engine, assembled_tools, load_app, publish, unloaded_agents
from perdure.contracts.context_assembly import PipelineToolConfig
from perdure.contracts.turns import Limits
from perdure.core.agents.plans import turn_plan
from perdure.core.calls.context_assembly import group_phases
from perdure.graph.registry import names
from tests.unit.apps.skill_app import are_at, is_at, problems_of

ENGINE = Engine(topologies=names(), script=Script)
TOOLS = '''
from perdure import tool

@tool(effect="read")
async def signal(said: list[str], most: int = 1) -> dict:
    """Hear."""
    return {}

@tool(effect="read")
async def fit(themes: list[str] | None = None) -> dict:
    """Fit."""
    return {}

@tool(effect="keyed", key_ttl_seconds=60)
async def book() -> dict:
    """Book."""
    return {}
'''
AGENT = """
id: helper
title: Helper
topology: context_assembly
assembly:
  pipeline: context
  intents: [ask]
  default_intent: ask
  intervention: Talk to somebody.
stages:
  safety: {prompt: Is it safe?, alone: true}
  intent: {prompt: What is wanted?, alone: true}
  empathy: {prompt: In which tone?, alone: true}
"""
GOOD = "tools:\n  - {name: signal, hears: true}\n  - {name: fit, dependencies: [signal], inject_inputs: [themes]}\n"


def app(folder: Path, pipeline: str = GOOD, agent: str = AGENT) -> App:
    """A small app with this registry and this agent."""
    for name, text in {"tools/t.py": TOOLS, "pipelines/context.yaml": pipeline, "agents/helper.yaml": agent}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).lstrip())
    return load_app(folder, ENGINE)


def test_a_registry_is_loaded_by_its_name_and_its_tools_are_published(tmp_path: Path) -> None:
    loaded = app(tmp_path)
    assert problems_of(loaded) == []
    (agent,) = loaded.agents
    assert assembled_tools(agent) == ("signal", "fit")
    assert agent.assembly is not None
    fit = agent.assembly.config("fit")
    assert fit == PipelineToolConfig(name="fit", dependencies=("signal",), inject_inputs=("themes",))
    assert (fit.defaults, fit.max_retries, fit.retry_backoff, fit.timeout, fit.optional) == ({}, 1, 0.5, 30.0, False)
    with pytest.raises(ValidationError):
        fit.max_retries = 5  # type: ignore[misc]
    (published,) = publish(app(tmp_path, agent=AGENT + "core_tools: false\ntools: [book]\n"), ())
    assert [card.name for card in published.cards] == ["book", "signal", "fit"]
    plan = turn_plan(published, Limits())  # no model is offered them
    assert [card.name for card in plan.cards] == ["book"]
    assert plan.assembly is not None and [tool.name for tool in plan.assembly.tools] == ["signal", "fit"]


@pytest.mark.parametrize(("pipeline", "problem"), [
    ("- name: signal\n    dependencies: [fit]\n  - name: fit\n    dependencies: [signal]\n", "3 fit signal"),
    ("- name: fit\n    dependencies: [fit]\n", "3 fit"),
    ("- name: signal\n  - name: fit\n    dependencies: [singal]\n", "4 singal signal"),
    ("- name: sgnal\n", "2 sgnal signal"), ("- name: book\n", "2 book keyed"),
    ("- {name: fit, hears: true}\n", "2 fit said"), ("- {name: fit, inject_inputs: [theme]}\n", "2 theme themes"),
    ("- {name: signal, defaults: {mots: 1}}\n", "2 mots most"), ("- {name: fit}\n  - {name: fit}\n", "3 fit"),
    ("- {name: fit, max_retry: 1}\n", "2 max_retry max_retries"), ("- {name: fit, timeout: 0}\n", "2 timeout"),
    ("fit: 1\n", "1"),
])  # fmt: skip
def test_a_registry_that_could_not_run_is_refused_with_its_agent(tmp_path: Path, pipeline: str, problem: str) -> None:
    loaded = app(tmp_path, pipeline if pipeline.startswith("fit") else f"tools:\n  {pipeline}")
    assert loaded.agents == ()
    for expected in (f"pipelines/context.yaml:{problem}", "agents/helper.yaml:5 context"):
        assert any(is_at(each, expected) for each in problems_of(loaded)), problems_of(loaded)
    (head, *lines) = (line.strip().replace(f"{loaded.folder}/", "") for line in unloaded_agents(loaded))
    assert loaded.name in head and "helper" in head
    assert lines == problems_of(loaded)


@pytest.mark.parametrize("tools", ["[fit, signal]", "[{name: fit}, signal]"])
@pytest.mark.parametrize(("pipeline", "agent"), [
    ("tools:\n  - {name: fit, dependencies: [fit]}\n", AGENT),
    (GOOD, AGENT.replace("pipeline: context", "pipeline: contxt")),
    (GOOD, AGENT.replace("pipeline: context", "pipeline: 3")),
    (GOOD, AGENT.replace("pipeline: context", "pipeline: context\n  registry: []")),
    (GOOD, AGENT.replace("topology: context_assembly", "topology: tool_loop")),
])  # fmt: skip
def test_a_list_of_tools_is_not_blamed_for_another_fault(tmp_path: Path, pipeline: str, agent: str, tools: str) -> None:
    loaded = app(tmp_path, pipeline, agent.replace("  intents:", f"  tools: {tools}\n  intents:"))
    assert loaded.agents == () and not [each for each in problems_of(loaded) if "tools" in each.partition(": ")[2]]


def test_a_rejected_agent_is_named_beside_the_loaded_ones(tmp_path: Path) -> None:
    app(tmp_path)
    (tmp_path / "agents" / "other.yaml").write_text(AGENT.lstrip().replace("helper", "other"))
    (tmp_path / "agents" / "third.yaml").write_text(AGENT.lstrip().replace("pipeline: context", "pipeline: circle"))
    circle = "tools:\n  - {name: signal, dependencies: [fit]}\n  - {name: fit, dependencies: [signal]}\n"
    (tmp_path / "pipelines" / "circle.yaml").write_text(circle)
    loaded = load_app(tmp_path, ENGINE)
    assert ([agent.id for agent in loaded.agents], loaded.unread) == (["helper", "other"], ("third",))
    lines = [line.replace(f"{loaded.folder}/", "") for line in unloaded_agents(loaded)]
    assert loaded.name in lines[0] and "third" in lines[0]
    expected = ["pipelines/circle.yaml:2 fit signal", "agents/third.yaml:5 circle"]
    assert are_at([line.strip() for line in lines[1:]], expected)
    assert unloaded_agents(app(tmp_path / "fine")) == []


@pytest.mark.parametrize(("before", "after", "names"), [
    ("pipeline: context", "pipeline: contxt", "contxt context"),
    ("pipeline: context", "pipeline: context\n  tools: [fti]", "fti fit"),
    ("pipeline: context", "pipeline: context\n  tools: [fit, fit]", "fit"),
    ("pipeline: context", "pipeline: context\n  tools: [{name: signal, arguments: {x: 1}}]", "signal 'x' most"),
    ("pipeline: context", "pipeline: context\n  registry: []", ""),
    ("default_intent: ask", "default_intent: tell", "tell"),
    ("alone: true}\n  intent", "alone: false}\n  intent", "safety"),
    ("pipeline: context", "pipeline: context\n  danger: {harm: ['end it', '*']}", "'*'"),
    ("topology: context_assembly", "topology: tool_loop", "context_assembly"),
    (AGENT[AGENT.index("assembly:") :], "", "helper.yaml:3: context_assembly"),
])  # fmt: skip
def test_an_agent_whose_assembly_is_wrong_is_refused(tmp_path: Path, before: str, after: str, names: str) -> None:
    loaded = app(tmp_path, agent=AGENT.replace(before, after))
    assert loaded.agents == ()
    assert any(all(name in each for name in names.split()) for each in problems_of(loaded)), problems_of(loaded)


def test_a_list_without_a_dependency_loads_with_a_warning(tmp_path: Path) -> None:
    loaded = app(tmp_path, agent=AGENT.replace("pipeline: context", "pipeline: context\n  tools: [fit]"))
    assert are_at(problems_of(loaded), ["agents/helper.yaml:6 fit signal"])
    assert loaded.problems[0].warning
    (agent,) = loaded.agents
    assert assembled_tools(agent) == ("fit",)


def test_the_five_shipped_bundles_run_in_two_phases(tmp_path: Path) -> None:
    shipped = load_app(SHIPPED / "care", ENGINE)
    assert shipped.problems == ()
    (agent,) = shipped.agents
    assert agent.assembly is not None
    registry = {config.name: config.dependencies for config in agent.assembly.registry}
    first = ("client_signal", "provider_genome", "patient_context", "session_narrative")
    assert group_phases(registry) == (first, ("therapeutic_fit",))
    folder = tmp_path / "care"
    shutil.copytree(SHIPPED / "care", folder)
    tool = (
        '@tool(effect="read")\nasync def waiting_times() -> dict:\n    """Weeks."""\n    return {"completeness": 1}\n'
    )
    (folder / "tools" / "waiting.py").write_text(f"from perdure import tool\n\n\n{tool}")
    with (folder / "pipelines" / "turn_context.yaml").open("a") as file:
        file.write("  - {name: waiting_times, dependencies: [therapeutic_fit]}\n")
    edited = load_app(folder, ENGINE)
    assert edited.problems == ()
    (agent,) = edited.agents
    assert agent.assembly is not None
    registry = {config.name: config.dependencies for config in agent.assembly.registry}
    assert group_phases(registry)[2:] == (("waiting_times",),)
