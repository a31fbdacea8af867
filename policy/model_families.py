"""Whose model a name means, as far as anything is sent differently to it."""

from typing import Final

_CLOUDS: Final = ("bedrock/", "vertex_ai/")


def is_claude(model: str) -> bool:
    """Whether a LiteLLM name is a Claude at Anthropic's own or at a cloud that serves it natively (S2-26).

    A router that speaks for many vendors is none of these, whatever it names.
    """
    return model.startswith("anthropic/") or (model.startswith(_CLOUDS) and "claude" in model)


def takes_thinking_budget(model: str) -> bool:
    """Whether its API counts thinking in tokens; the others know levels of effort only."""
    return is_claude(model) or model.startswith("gemini/") or (model.startswith("vertex_ai/") and "gemini" in model)
