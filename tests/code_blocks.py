"""Fixtures of tests/apps/code_blocks: an agent whose tools are code blocks, with workers and a real jail."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from pydantic import JsonValue

from perdure.activities.sandbox import BlockResult, Flaw, Limits, Sandbox, SandboxConfig, open_sandbox
from perdure.activities.toolbox.engine_tools import CORE_ALWAYS, CORE_BY_NAME
from perdure.activities.toolbox.registry import Toolbox
from perdure.apps import load_app, publish, tables_of
from perdure.contracts.agents import PublishedAgent
from perdure.contracts.skills import DataTable
from tests.doubles.target import app_agents
from tests.harness import Harness, publish_app

CODE_BLOCK_APP = Path(__file__).parent / "apps" / "code_blocks"
MAKER = "maker"
WALL_SECONDS = 1.5


def code_block_app(folder: Path = CODE_BLOCK_APP) -> tuple[list[tuple[str, PublishedAgent]], list[DataTable]]:
    app = load_app(folder)
    assert not app.problems, app.problems
    published = publish(app, [tool.card for tool in CORE_BY_NAME.values()])
    return [(app.name, agent) for agent in published], tables_of(app, published)


@dataclass(slots=True)
class NotedSandbox:
    """A sandbox that notes who asked for a run."""

    inner: Sandbox
    tenants: list[str] = field(default_factory=list)
    given: list[Mapping[str, JsonValue]] = field(default_factory=list)

    async def run(
        self, tenant_id: str, code: str, inputs: Mapping[str, JsonValue], limits: Limits | None = None
    ) -> BlockResult:
        self.tenants.append(tenant_id)
        self.given.append(inputs)
        return await self.inner.run(tenant_id, code, inputs, limits)

    async def check(
        self, code: str, input_schema: Mapping[str, JsonValue], output_schema: Mapping[str, JsonValue]
    ) -> tuple[Flaw, ...]:
        return await self.inner.check(code, input_schema, output_schema)

    async def close(self) -> None:
        await self.inner.close()


@pytest.fixture(scope="module")
async def noted() -> AsyncIterator[NotedSandbox]:
    """A second and a half for each block."""
    opened = await open_sandbox(SandboxConfig(ceiling=Limits(wall_seconds=WALL_SECONDS)))
    yield NotedSandbox(opened)
    await opened.close()


@pytest.fixture(scope="module")
async def blocks(harness: Harness, noted: NotedSandbox) -> Harness:
    agents, tables = code_block_app()
    await publish_app(harness.owner_url, [*app_agents()[0], *agents], tables)
    tools = [*app_agents()[1], *((MAKER, tool) for tool in CORE_ALWAYS)]
    toolbox = Toolbox(tools, lambda name: None, harness.deps.toolbox.http)
    return replace(harness, deps=replace(harness.deps, sandbox=noted, toolbox=toolbox))
