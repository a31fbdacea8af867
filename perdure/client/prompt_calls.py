"""The calls about prompt templates. Each function makes a value, nothing is sent."""

from typing import Literal

from perdure.client.answers import Page
from perdure.client.calls import Call, get, one, path, post
from perdure.client.catalogue_answers import PromptVersion

Shown = Literal["draft", "pre_production", "active"]


def list_prompts(
    *, template: str | None = None, stage: str | None = None, limit: int | None = None, cursor: str | None = None
) -> Call[Page[PromptVersion]]:
    """Versions without their texts, changed last first."""
    query = {"template": template, "stage": stage, "limit": limit, "cursor": cursor}
    return get(path("prompt-templates"), one(Page[PromptVersion]), query)


def get_prompt(template: str, *, stage: Shown | None = None) -> Call[PromptVersion]:
    """The version that speaks to the caller: the own draft, else the active one; with `stage` the one in it."""
    return get(path("prompt-templates", template), one(PromptVersion), {"stage": stage})


def render_prompt(
    template: str, *, stage: Shown | None = None, agent_title: str | None = None, skill_name: str | None = None
) -> Call[PromptVersion]:
    """The same with its variables filled in."""
    query = {"stage": stage, "agent_title": agent_title, "skill_name": skill_name}
    return get(path("prompt-templates", template, "render"), one(PromptVersion), query)


def get_prompt_version(version_id: str) -> Call[PromptVersion]:
    """One version with its text and history."""
    return get(path("prompt-versions", version_id), one(PromptVersion))


def save_draft(template: str, text: str) -> Call[PromptVersion]:
    """Make `text` the caller's draft; saving it twice is saving it once."""
    return Call("PUT", path("prompt-templates", template, "draft"), one(PromptVersion), body={"text": text})


def promote_prompt(
    version_id: str, to: Literal["pre_production", "active"], digest: str, *, idempotency_key: str = ""
) -> Call[PromptVersion]:
    """Move a version on by one stage; `digest` is that of the text which was read."""
    body = {"to": to, "digest": digest}
    return post(path("prompt-versions", version_id, "promote"), one(PromptVersion), body, key=idempotency_key)


def archive_prompt(version_id: str, *, idempotency_key: str = "") -> Call[PromptVersion]:
    """Take a version out of use."""
    return post(path("prompt-versions", version_id, "archive"), one(PromptVersion), key=idempotency_key)
