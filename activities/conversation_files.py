"""The files of a conversation as its tools see them: read by id, kept with the call that made them."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from contracts.ids import file_id
from contracts.tools import ToolCall
from contracts.turns import TurnAddress
from perdure.context import GivenFile
from perdure.outcomes import MadeFile
from policy.uploads import safe_name
from store import files
from store.database import Connection, Database


@dataclass(frozen=True, slots=True)
class ConversationFiles:
    """Reads of one call; each is a transaction of its own."""

    db: Database
    address: TurnAddress

    async def read(self, file_id: str) -> GivenFile | None:
        """The file, or None: of another conversation there is none."""
        try:
            UUID(file_id)
        except ValueError:
            return None
        async with self.db.transaction(self.address.tenant_id) as tx:
            found = await files.read_in(tx, self.address.conversation_id, file_id)
        return GivenFile(found.id, found.name, found.media_type, found.content) if found else None

    async def uploads(self, media_types: Sequence[str], most: int) -> Sequence[str]:
        """The last uploads of these types, newest first, one of each name."""
        async with self.db.transaction(self.address.tenant_id) as tx:
            return await files.last_uploaded(tx, self.address.conversation_id, media_types, most)


async def keep_files(tx: Connection, call: ToolCall, user_id: str, made: Sequence[MadeFile]) -> None:
    """Keep what a call made, under ids that follow from the call."""
    turn_id, call_id = call.address.turn_id, call.ask.call_id
    kept = [
        files.NewFile.of(file_id(turn_id, call_id, file.name), safe_name(file.name), file.media_type, file.content)
        for file in made
    ]
    await files.keep(tx, call.address.conversation_id, user_id, kept, turn_id=turn_id, call_id=call_id)
