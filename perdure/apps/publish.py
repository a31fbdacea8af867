"""From a loaded app to what is stored: each agent with the cards of its tools, under a version."""

from collections.abc import Sequence

from contracts.agents import AgentDefinition, PublishedAgent, ToolCard
from contracts.digests import digest_of
from contracts.errors import InvariantBroken
from perdure.apps.engine import ALWAYS_OFFERED
from perdure.apps.folder import App


def publish(app: App, core_cards: Sequence[ToolCard]) -> list[PublishedAgent]:
    """The agents of `app`, each with its cards: core tools first, then its own in its own order, none twice (S0-41).

    Equal definitions and cards give equal versions, so that publishing again changes nothing.
    """
    core = {card.name: card for card in core_cards}
    return [_publish(agent, app, core) for agent in app.agents]


def _publish(agent: AgentDefinition, app: App, core: dict[str, ToolCard]) -> PublishedAgent:
    offered = [name for name in ALWAYS_OFFERED if name in core] if agent.core_tools else []
    names = dict.fromkeys([*offered, *agent.tools])
    cards = []
    for name in names:
        card = core[name] if name in core else app.tools[name].card if name in app.tools else None
        if card is None:
            raise InvariantBroken("tool_without_card", f"agent {agent.id} names the tool {name}, which nobody has")
        cards.append(card)
    version = digest_of(
        {"definition": agent.model_dump(mode="json"), "cards": [card.model_dump(mode="json") for card in cards]}
    )
    return PublishedAgent(definition=agent, cards=tuple(cards), version=version)
