"""result_handling_node: the answer becomes the turn's (S3-02)."""

from dataclasses import dataclass

from pydantic import JsonValue

from contracts.messages import MessageRef, Patch
from graph.ports import Ports
from graph.spec import State


@dataclass(frozen=True, slots=True)
class HandleResult:
    """Keep the message that the model wrote; nobody reads its words to decide anything."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """The beginning of the text, and the message itself by reference."""
        response, before = state["model_response"], state["messages"]
        output = response.get("output") if isinstance(response, dict) else None
        message = MessageRef.model_validate(output)
        messages: list[JsonValue] = [*(before if isinstance(before, list) else []), message.model_dump(mode="json")]
        return {"final_output": message.text, "messages": messages}
