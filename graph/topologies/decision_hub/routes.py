"""The two routers of `decision_hub`. Neither reads a text: one reads the command, one the status of a call (S3-08)."""

from typing import Literal

from graph.spec import State
from policy.hub_commands import Command
from policy.model_answers import AnswerStatus


async def after_decision(state: State) -> Command:
    """The command, which only the deciding node gives (S3-05)."""
    return Command(str(state["command"]))


async def after_model(state: State) -> Literal["success", "failure"]:
    """Whether there is an answer."""
    response = state["model_response"]
    status = response.get("status") if isinstance(response, dict) else None
    return "success" if status == AnswerStatus.SUCCESS else "failure"
