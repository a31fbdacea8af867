"""format_feedback: the only writer of `output` on the server's way (S4-12): escaped text, suggestions, the pictures."""

from dataclasses import dataclass
from html import escape

from pydantic import JsonValue

from contracts.messages import Patch
from graph.nodes.reading import error_of, messages_of
from graph.ports import Ports
from graph.reducers import replace
from graph.spec import State
from graph.topologies.clarify_solve.nodes.build import palette_of
from graph.topologies.clarify_solve.state import bucket, list_of, object_of, text_of, warnings_of

DEFAULT_PALETTE = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2")


@dataclass(frozen=True, slots=True)
class FormatFeedback:
    """Nothing of what a model or a table says is markup (S4-40)."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """The answer itself stays plain text; its HTML is beside it (S4-39)."""
        if error_of(state) is not None:
            return {}
        output: dict[str, JsonValue] = {"text": html(messages_of(state)[-1].text), "suggestions": _suggestions(state)}
        if text_of(state, "classified") == "palette":
            output["selection_prompt"] = "Pick a palette."
        drawn = object_of(state, "drawn")
        if drawn:
            output["pictures"] = {name: f"/v1/files/{file}" for name, file in drawn.items()}
        told, fault = warnings_of(object_of(state, "run"), object_of(state, "solved")), text_of(state, "fault")
        # S4-45: whoever keeps the data reads no conversation.
        output["warnings"] = [*told, fault] if fault and bucket(state, "input").get("is_client") else told
        output["retries"] = bucket(state, "turn_metrics")
        return {"status": "completed", "output": {name: replace(value) for name, value in output.items()}}


def html(text: str) -> str:
    """Plain text as paragraphs."""
    parts = [escape(part).replace("\n", "<br>") for part in text.split("\n\n") if part.strip()]
    return "".join(f"<p>{part}</p>" for part in parts)


def _suggestions(state: State) -> list[JsonValue]:
    if text_of(state, "classified") == "palette":
        colours: list[JsonValue] = [*(palette_of(state) or DEFAULT_PALETTE)]
        return [{"kind": "custom_palette", "colors": colours}]
    if text_of(state, "fault"):
        return []  # made with a plan that came to nothing, they would come to nothing too
    return [{"kind": "text", "text": str(each)} for each in list_of(state, "suggestions")]
