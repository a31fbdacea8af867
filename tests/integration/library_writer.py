"""A small library of documents for tests: people of the desk who write, and another tenant."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perdure.contracts.memory import Scope
from perdure.core.memory.documents import Writer
from perdure.store.database import Database
from perdure.store.memory import documents
from perdure.store.memory import search as documents_reading
from perdure.store.memory.documents import CONVENTIONS, Basis, Draft, WrittenVersion
from perdure.store.memory.search import Document, Question, search
from tests.conftest import Person, Urls, as_owner

OTHER = "other"


@dataclass(slots=True)
class Library:
    db: Database
    people: dict[str, Person]

    def writer(self, name: str, *, agent: bool = False) -> Writer:
        """A person of the desk, or an agent in a turn of that person."""
        return Writer(self.people[name].user_id, self.people[name].roles, agent)

    async def write(
        self,
        path: str,
        content: str,
        *,
        by: str = "requester",
        agent: bool = False,
        scope: Scope = Scope.USER,
        document_type: str = "user_preference",
        conversation_id: str | None = None,
        entities: Sequence[str] = (),
    ) -> WrittenVersion:
        store = CONVENTIONS if scope is Scope.WORKSPACE else None
        draft = Draft(scope, path, document_type, path, content, store, conversation_id, entities)
        async with self.db.transaction("local") as tx:
            return await documents.create_document(tx, self.writer(by, agent=agent), draft, Basis("the person said so"))

    async def read(self, document_id: str, by: str = "requester") -> Document:
        async with self.db.transaction("local") as tx:
            return await documents_reading.get_document(tx, document_id, self.people[by].user_id)

    async def change(
        self, made: WrittenVersion, content: Any, *, by: str = "requester", sha256: str | None = None
    ) -> WrittenVersion:
        """A new version, on the version that `made` is, or that `sha256` names."""
        async with self.db.transaction("local") as tx:
            found = await documents_reading.get_document(tx, made.ref.document_id, self.people[by].user_id, lock=True)
            sha256 = sha256 or made.sha256
            return await documents.update_document(tx, self.writer(by), found, sha256, content, Basis("seen"))

    async def found(self, text: str, by: str = "requester", conversation_id: str | None = None) -> list[str]:
        async with self.db.transaction("local") as tx:
            question = Question(text, self.people[by].user_id, conversation_id)
            return [each.ref.path for each in await search(tx, question, 6)]


async def other_tenant(urls: Urls) -> None:
    async with as_owner(urls.owner) as owner:
        await owner.execute("INSERT INTO tenants (tenant_id) VALUES ($1) ON CONFLICT DO NOTHING", OTHER)
