"""Plain LangGraph: the merged steps as nodes, with a checkpoint in Postgres after each one before the next begins."""

import asyncio
from contextlib import AsyncExitStack
from itertools import cycle
from typing import Any, Final, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import END, START, StateGraph
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from bench.baselines.values import Loaded, ModelContext, ModelResult, Turn
from bench.baselines.work import Work

SAVERS: Final = 12
"""A saver locks every statement, even with a pool: with a single saver, 64 turns would wait for each other."""
_POOL: Final = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row, "options": "-c search_path=public"}


class State(TypedDict, total=False):
    """The content of a checkpoint: plain data, which LangGraph's serializer stores unchanged."""

    turn: dict[str, Any]
    loaded: dict[str, Any]
    said: dict[str, Any]
    step: int


class PlainGraph:
    """Compiled graphs over one pool."""

    def __init__(self, work: Work, savers: list[AsyncPostgresSaver]) -> None:
        self._work = work
        graph = StateGraph(State)
        graph.add_node("load", self._load)
        graph.add_node("model", self._model)
        graph.add_node("tools", self._tools)
        graph.add_node("finish", self._finish)
        graph.add_edge(START, "load")
        graph.add_edge("load", "model")
        graph.add_conditional_edges("model", _after_model, ["tools", "finish"])
        graph.add_edge("tools", "model")
        graph.add_edge("finish", END)
        self._graphs = cycle([graph.compile(checkpointer=saver) for saver in savers])

    @classmethod
    async def open(cls, work: Work, owner_url: str, stack: AsyncExitStack) -> "PlainGraph":
        """Connects as the owner of the checkpoint tables: they are LangGraph's own and have no tenant."""
        pool: AsyncConnectionPool[Any] = AsyncConnectionPool(
            owner_url, min_size=1, max_size=SAVERS, open=False, kwargs=_POOL
        )
        await stack.enter_async_context(pool)
        savers = [AsyncPostgresSaver(pool) for _ in range(SAVERS)]
        return cls(work, savers)

    async def run(self, turn: Turn) -> None:
        """Runs one turn from its input to its end."""
        initial: State = {"turn": turn.model_dump(mode="json"), "step": 0}
        config: RunnableConfig = {"configurable": {"thread_id": turn.address.turn_id}}
        await next(self._graphs).ainvoke(initial, config, durability="sync")

    async def _load(self, state: State) -> State:
        turn = Turn.model_validate(state["turn"])
        loaded = await self._work.load(turn.address, turn.agent_version)
        return {"loaded": loaded.model_dump(mode="json")}

    async def _model(self, state: State) -> State:
        turn = Turn.model_validate(state["turn"])
        previous = ModelResult.model_validate(state["said"]) if "said" in state else None
        model_context = ModelContext(
            loaded=Loaded.model_validate(state["loaded"]), tokens=previous.tokens if previous else 0
        )
        step = state["step"] + 1
        result = await self._work.model(turn.address, turn.agent_version, step, model_context)
        return {"said": result.model_dump(mode="json"), "step": step}

    async def _tools(self, state: State) -> State:
        turn, result = Turn.model_validate(state["turn"]), ModelResult.model_validate(state["said"])
        await asyncio.gather(*(self._work.tool(turn.address, call, result) for call in result.calls))
        return {}

    async def _finish(self, state: State) -> State:
        turn = Turn.model_validate(state["turn"])
        await self._work.finish(turn.address, ModelResult.model_validate(state["said"]))
        return {}


async def _after_model(state: State) -> str:
    return "tools" if state["said"]["calls"] else "finish"


async def make_tables(owner_url: str) -> None:
    """Creates LangGraph's own tables."""
    pool: AsyncConnectionPool[Any] = AsyncConnectionPool(owner_url, min_size=1, max_size=1, open=False, kwargs=_POOL)
    async with pool:
        await AsyncPostgresSaver(pool).setup()
