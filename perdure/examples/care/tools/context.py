"""The five bundles of a turn's context. Each reads and changes nothing, so a call that failed may be made again.

A bundle says under `completeness`, from 0 to 1, how much of what it could know it does.
"""

from typing import Annotated, Any

from pydantic import Field, JsonValue

from perdure import ToolContext, tool

from . import _made_up

Said = Annotated[list[str], Field(description="The client's newest messages, oldest first")]


@tool(effect="read")
async def client_signal(said: Said) -> JsonValue:
    """Returns the themes in the client's own words."""
    themes = _made_up.themes_in(said)
    return {
        "signal_summary": {"themes": [*themes], "messages": len(said)},
        "completeness": min(1.0, 0.2 + 0.3 * len(themes)),
    }


@tool(effect="read")
async def provider_genome() -> JsonValue:
    """Returns the focus and the style of the fictional therapists."""
    providers: list[JsonValue] = [{**provider} for provider in _made_up.PROVIDERS]
    return {"genome_summary": providers, "completeness": 0.9}


@tool(effect="read")
async def patient_context(context: ToolContext) -> JsonValue:
    """The client's made-up profile."""
    profile = _made_up.PROFILES[sum(context.user_id.encode()) % len(_made_up.PROFILES)]
    return {"profile": {**profile}, "completeness": 0.7}


@tool(effect="read")
async def therapeutic_fit(
    signal_summary: dict[str, Any] | None = None, genome_summary: list[dict[str, Any]] | None = None, most: int = 3
) -> JsonValue:
    """Returns the therapists whose work fits the client's themes."""
    themes = set((signal_summary or {}).get("themes", []))
    fits = [
        {"provider": provider["id"], "name": provider["name"], "shared": sorted(themes.intersection(provider["focus"]))}
        for provider in genome_summary or []
    ]
    ranked: list[JsonValue] = [*sorted(fits, key=lambda fit: -len(fit["shared"]))[:most]]
    completeness = (0.5 if themes else 0.2) + (0.4 if genome_summary else 0.0)
    return {"candidates": ranked, "completeness": completeness}


@tool(effect="read")
async def session_narrative(said: Said) -> JsonValue:
    """The conversation so far, in one line."""
    themes = _made_up.themes_in(said)
    about = ", ".join(themes) if themes else "nothing that has a name yet"
    return {"narrative": f"{len(said)} messages, about {about}.", "completeness": 0.5}
