"""initialize_processing_state: the plan of the turn, what was asked, and where the data is (S4-01, S4-04)."""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from contracts.messages import Patch
from contracts.tables import CLIENT_TABLE, ClientTables, why_no_tables
from graph.nodes.call_model import STOP_CODES
from graph.ports import Ports
from graph.spec import State
from graph.topologies.clarify_solve.state import left
from policy.text import without_word


@dataclass(frozen=True, slots=True)
class Initialize:
    """Both forms begin here; whether the data stays with the client is all that differs (S4-01)."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """One load; a plan that cannot be loaded ends the run."""
        context = await ports.memory.load()
        if context.problem is not None:
            status = STOP_CODES.get(context.problem.code, "failed")
            return _ended(context.problem.code, context.problem.message, status)
        plan, message = context.plan, context.user_message
        if plan is None or message is None:
            return _ended("nothing_loaded", "the turn has no plan", "failed")
        heard = without_word(message.text, plan.words.get("bypass", ""))
        bypass = "yes" if heard != message.text else None
        message = message.model_copy(update={"text": heard or message.text})
        patch: Patch = {
            "plan": plan.model_dump(mode="json"),
            "agent_id": plan.agent_id,
            "agent_type": plan.agent_id,
            "user": {"name": context.user_name or "user", "role": context.user_role},
            "max_tokens": plan.limits.max_tokens,
            "max_cost_microusd": plan.limits.max_cost_microusd,
            "messages": [message.model_dump(mode="json")],
        }
        given = context.metadata.get(CLIENT_TABLE)
        if given is not None:
            fault = why_no_tables(given)
            if fault:
                return patch | _ended("client_table_invalid", fault, "failed")
            table = ClientTables.model_validate(given)
            patch["input"] = {"message": message.text, "is_client": True}
            return patch | left(
                start="request",
                bypass=bypass,
                table=table.model_dump(mode="json", exclude_none=True, exclude_defaults=True),
            )
        patch["input"] = {"message": message.text, "is_client": False}
        return patch | left(start=_start(message.text, plan.words), bypass=bypass)


def _start(said: str, words: Mapping[str, str]) -> str:
    for label, word in (("shortcut", words.get("shortcut")), ("upload", words.get("upload"))):
        if word and said.startswith(word):
            return label
    return "request"


def _ended(code: str, message: str, status: str) -> Patch:
    problem: dict[str, JsonValue] = {"code": code, "message": message}
    return {"error": problem, "status": status, **left(start="upload")}
