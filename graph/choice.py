"""Which ways a run takes out of a switch or a fork."""

from contracts.errors import InvariantBroken
from graph.spec import Fork, State, Switch


async def chosen(edge: Fork | Switch, state: State) -> tuple[str, ...]:
    """The nodes, or END, that come next.

    Raises: InvariantBroken `unknown_label` for a label that the router does not declare.
    """
    if isinstance(edge, Fork):
        return (*edge.branches, *[head for head, wanted in edge.optional.items() if await wanted(state)])
    label = await edge.router(state)
    if label not in edge.targets:
        raise InvariantBroken(
            "unknown_label", f"The router after `{edge.source}` returned `{label}`, which it may not."
        )
    way = edge.targets[label]
    return await chosen(way, state) if isinstance(way, Fork) else (way,)
