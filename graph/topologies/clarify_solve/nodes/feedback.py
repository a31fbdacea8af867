"""feedback_node: what came of it, in the model's words or in ours (S4-38)."""

from dataclasses import dataclass

from pydantic import JsonValue

from contracts.errors import Problem
from contracts.messages import MessageRef, Patch, Role
from contracts.model import ModelAsk
from graph.nodes.ask_object import note
from graph.nodes.call_model import STOP_CODES, spent_by
from graph.nodes.reading import error_of, messages_of
from graph.ports import Ports
from graph.spec import State
from graph.topologies.clarify_solve.state import object_of, text_of, warnings_of
from policy.budget import COST_SPENT, TOKENS_SPENT


@dataclass(frozen=True, slots=True)
class Feedback:
    """The only words of a turn that a person reads as they come."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Ours where the person wants no more, where the model cannot answer, and after a budget is spent."""
        if error_of(state) is not None:
            return {}
        said = messages_of(state)
        if text_of(state, "bypass") or spent_by(state) is not None:
            return _own_words(state)
        user = state["user"]
        reply = await ports.model.complete(
            ModelAsk(
                messages=(*said[:1], note(facts(state))),
                tools=(),
                prompt=user if isinstance(user, dict) else {},
                stage="feedback",
            )
        )
        patch: Patch = {"tokens_used": reply.usage.tokens, "cost_microusd": reply.usage.cost_microusd}
        if reply.problem is not None and reply.problem.code in STOP_CODES and not _was_spent(reply.problem):
            patch |= {"error": reply.problem.model_dump(mode="json"), "status": STOP_CODES[reply.problem.code]}
            return patch
        if reply.problem is not None or reply.message is None or not reply.message.text.strip():
            return {**patch, **_own_words(state)}
        return {**patch, "messages": _with(state, reply.message)}


def _was_spent(problem: Problem) -> bool:
    """Whether the model was not asked: the turn had spent more than its graph knew."""
    return problem.code in (TOKENS_SPENT, COST_SPENT)


def facts(state: State) -> str:
    """What happened, in one sentence each: the model's only ground, and the person's where there is no model."""
    lines = []
    if text_of(state, "classified") == "no_data":
        lines.append("There is no table yet: one must be uploaded first.")
    if text_of(state, "classified") == "palette":
        lines.append("A palette is suggested beside this text.")
    if text_of(state, "start") == "upload":
        lines.append("The upload has arrived and can be worked with.")
    run, solved = object_of(state, "run"), object_of(state, "solved")
    if run:
        rows = run.get("rows")
        lines.append(f"The data was prepared: {'1 row is' if rows == 1 else f'{rows} rows are'} left.")
    design = solved.get("design")
    if isinstance(design, dict):
        lines.append(f"A design was found: {design.get('mark')}.")
    if object_of(state, "drawn"):
        lines.append("The picture was drawn.")
    lines += [_sentence(str(each)) for each in warnings_of(run, solved)]
    fault = text_of(state, "fault")
    if fault:
        lines.append(f"It could not be finished: {fault}")
    return "\n".join(lines) or "Nothing was to be done on the data."


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith((".", "!", "?")) else ".")


def _own_words(state: State) -> Patch:
    return {"messages": _with(state, MessageRef(role=Role.ASSISTANT, text=facts(state)))}


def _with(state: State, message: MessageRef) -> list[JsonValue]:
    before = state["messages"]
    return [*(before if isinstance(before, list) else []), message.model_dump(mode="json")]
