"""context_format: what both branches have brought, as the answer's prompt takes it (S1-06, S1-37)."""

from dataclasses import dataclass

from pydantic import JsonValue

from contracts.events import STAGE
from contracts.messages import Patch
from contracts.pipeline import Source
from graph.nodes.reading import bundles_of, error_of
from graph.ports import Ports
from graph.spec import State
from policy.bundles import guidance


@dataclass(frozen=True, slots=True)
class FormatContext:
    """Sections by reference, and in words what is missing of them and how to answer."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Nothing is formatted of an assembly that failed."""
        patch: Patch = {"completed_stages": ["context_format"]}
        if error_of(state) is not None:
            return patch
        bundles, missing, tone = bundles_of(state, "bundles"), state["degraded_sections"], state["empathy"]
        degraded = [str(name) for name in missing] if isinstance(missing, list) else []
        read = tone if isinstance(tone, dict) else {}
        notes = {
            "Intent": str(state["intent"]),
            "Tone": str(read.get("tone", "")),
            "Advice": str(read.get("guidance", "")),
        }
        sections: list[JsonValue] = [
            Source(tool=each.tool, turn_id=each.turn_id).model_dump(mode="json") for each in bundles.values()
        ]
        told: list[JsonValue] = [*degraded]
        ports.events.emit(STAGE, {"stage": "context_format", "sections": [*bundles], "degraded": told})
        return patch | {"context_sections": sections, "context_guidance": guidance(degraded, notes)}
