"""What a turn did with documents: its usage rows (S2-16), and the events of calls that are under way."""

from collections.abc import Iterable, Sequence

from contracts.documents import Use
from contracts.errors import UpstreamUnavailable
from contracts.turns import TurnAddress
from store.database import Connection
from store.journal import NewEvent, write


async def hold(tx: Connection, turn_id: str) -> None:
    """Take the turn's lock, before that of any document.

    Raises: UpstreamUnavailable `turn_over`: nothing may be written for it; the next attempt reads why.
    """
    if not await tx.fetchval("SELECT ended_at IS NULL FROM turns WHERE id = $1 FOR UPDATE", turn_id):
        raise UpstreamUnavailable("turn_over", "the turn has ended")


async def note(tx: Connection, address: TurnAddress, use: Use, versions: Iterable[str], call_id: str = "") -> None:
    """Record what this turn did with these versions; once each, however often it is said."""
    await tx.execute(
        "INSERT INTO conversation_memory_usage (tenant_id, conversation_id, turn_id, call_id, kind, version_id) "
        "SELECT current_setting('perdure.tenant'), $1, $2, $3, $4, v FROM unnest($5::uuid[]) AS v "
        "ON CONFLICT DO NOTHING",
        address.conversation_id,
        address.turn_id,
        call_id,
        use.value,
        [*versions],
    )


async def tell(tx: Connection, address: TurnAddress, events: Sequence[NewEvent]) -> None:
    """Write the events of a call before its result; the caller holds the turn's lock and writes nothing after."""
    if events:
        await write(tx, address, events)
