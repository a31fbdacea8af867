"""What a tenant's policy may let run without a person: two of the engine's own memory tools and nothing else (S2-41).

Rules only ever stop (policy/rules.py); this is the one thing by which a tenant lets something pass, so it stands apart.

Invariants:
- Only the engine says which tools these are, by name and effect class: no app's tool and no server's is one of them.
- A waiver stands for the approval that the tool's own card asks for. Whatever else asks for a person (a rule of the
  platform, of an app or of a skill) asks all the same, and an approval that was asked for counts as ever.
- A turn takes the waivers as it begins (store/turn_context.py); its calls are held against what it has taken.
"""

from collections.abc import Collection, Iterable

from pydantic import JsonValue

from contracts.agents import EffectClass, PlanCard, ToolCard
from contracts.skills import RuleTrigger

WAIVABLE = ("memory_patch", "memory_propose_promotion")
"""They write what their user may write, in the user's own scope, or ask an administrator."""
RULE_WAIVED = "tenant:approval_waived"
"""What is put on record in place of a rule that fired."""


def is_waivable(name: str, effect: EffectClass) -> bool:
    """Whether a tenant may let this tool run without a person; a server's tool is never `local`."""
    return name in WAIVABLE and effect is EffectClass.LOCAL


def waived_of(cards: Iterable[ToolCard], waivers: Collection[str]) -> tuple[str, ...]:
    """The tools among these whose own approval the tenant's `waivers` take away."""
    return tuple(
        card.name
        for card in cards
        if card.needs_approval and card.name in waivers and is_waivable(card.name, card.effect)
    )


def asks_by_itself(card: ToolCard | PlanCard, waived: Collection[str]) -> bool:
    """Whether the card asks for a person, in a turn that has taken these waivers."""
    return card.needs_approval and not (card.name in waived and is_waivable(card.name, card.effect))


def waiver_fault(tool: str) -> str | None:
    """Why a tenant may not let `tool` run without a person; None where it may."""
    if tool in WAIVABLE:
        return None
    return f"only these may run without an approval that they need: {', '.join(WAIVABLE)}"


def told_of(tool: str) -> dict[str, JsonValue]:
    """A call that is let pass, as the data of the event by which rules are told."""
    return {
        "rule_id": RULE_WAIVED,
        "trigger": RuleTrigger.BEFORE_TOOL_CALL.value,
        "tool": tool,
        "action": "allow",
        "message": "the tenant's policy lets it run without a person",
    }
