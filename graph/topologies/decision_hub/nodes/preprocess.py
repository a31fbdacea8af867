"""task_preprocessing_node: text is trimmed; audio and image are stood in for (S3-16)."""

from dataclasses import dataclass

from contracts.messages import Patch
from graph.ports import Ports
from graph.spec import State


@dataclass(frozen=True, slots=True)
class Preprocess:
    """Make of the input what the model is given."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """The text, or a placeholder that says what it stands for."""
        if state["input_type"] == "text":
            return {"preprocessing_result": str(state["raw_input"]).strip()}
        return {"preprocessing_result": f"[{state['input_type']} input, which cannot be read yet]"}
