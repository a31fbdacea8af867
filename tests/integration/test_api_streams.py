"""Event streams over HTTP: a reader that leaves, comes back, is late, or looks where it may not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial

import httpx
import pytest
from prometheus_client import REGISTRY

from perdure.api.auth import is_welcome, of_token
from perdure.api.rate_limits import OpenStreams
from perdure.api.streams import Streams
from perdure.core.events.stream import Cursor
from perdure.core.identity import Credential, How
from perdure.store.identity import sign_in, users
from tests.harness import until
from tests.integration.conftest import Api
from tests.integration.test_api_access import having
from tests.integration.test_api_turns import conversation, refusal, started
from tests.integration.turn_writer import Sent, parsed

WORDS = " ".join(f"w{number}" for number in range(40))


class Reading:
    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self.sent: list[Sent] = []
        self._chunks = answer.aiter_bytes()
        self._rest = b""

    async def until(self, kind: str, times: int = 1) -> list[Sent]:
        """All that came so far, once an event of this kind came `times` times."""
        async with asyncio.timeout(20):
            while [event.kind for event in self.sent].count(kind) < times:
                await self._more()
        return self.sent

    async def whole(self) -> list[Sent]:
        async with asyncio.timeout(30):
            try:
                while True:
                    await self._more()
            except StopAsyncIteration:
                return self.sent

    async def _more(self) -> None:
        self._rest += await anext(self._chunks)
        done, found, rest = self._rest.rpartition(b"\n\n")
        if found:
            self.sent += parsed(done + found)
            self._rest = rest


@asynccontextmanager
async def reading(client: httpx.AsyncClient, path: str, after: str | None = None) -> AsyncIterator[Reading]:
    async with client.stream("GET", path, headers={"Last-Event-ID": after} if after else {}) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Reading(answer)


async def test_coming_back_after_done_is_204(api: Api) -> None:
    async with api.client() as client:
        events = (await started(client, await conversation(client), "/echo bye")).json()["events"]
        async with reading(client, events) as stream:
            sent = await stream.whole()
        assert [event.kind for event in sent[-2:]] == ["done", "workflow_complete"]
        assert sent[-2].data.keys() >= {"execution_id", "status", "tokens_used", "cost_usd", "duration_ms"}
        assert sent[-1].id is None
        for given in ({"headers": {"Last-Event-ID": str(sent[-2].id)}}, {"params": {"after": str(sent[-2].id)}}):
            over = await client.get(events, **given)  # type: ignore[arg-type]
            assert (over.status_code, over.content) == (204, b"")
        async with reading(client, events, sent[-3].id) as stream:
            assert [event.kind for event in await stream.whole()] == ["done", "workflow_complete"]


async def test_a_turns_stream_stays_open_through_a_pause(api: Api) -> None:
    async with api.client() as client, api.client("reviewer") as reviewer:
        events = (await started(client, await conversation(client), "Refund order 1042")).json()["events"]
        async with reading(client, events) as stream:
            sent = await stream.until("tool.awaiting_approval")
            approval_id = next(each.data["approval_id"] for each in sent if each.kind == "tool.awaiting_approval")
            assert "done" not in [event.kind for event in sent]
            shown = (await reviewer.get(f"/v1/approvals/{approval_id}")).json()
            body = {"decision": "reject", "digest": shown["digest"], "comment": "no"}
            assert (await reviewer.post(f"/v1/approvals/{approval_id}/decision", json=body)).status_code == 200
            kinds = [event.kind for event in await stream.whole()]
        assert kinds.index("tool.awaiting_approval") < kinds.index("tool.denied") < kinds.index("done")
        assert kinds.count("done") == kinds.count("workflow_complete") == 1


async def test_a_reader_that_goes_away_stops_nothing_and_leaves_nothing_open(api: Api) -> None:
    async with api.client() as client:
        before = REGISTRY.get_sample_value("perdure_streams")
        turn = (await started(client, await conversation(client), f"/echo {WORDS}")).json()
        async with reading(client, turn["events"]) as stream:
            await stream.until("token")
            assert REGISTRY.get_sample_value("perdure_streams") == (before or 0) + 1
        await until(lambda: REGISTRY.get_sample_value("perdure_streams") == before)
        await client.get(turn["events"])
        assert (await client.get(f"/v1/turns/{turn['turn_id']}")).json()["answer"] == WORDS


@pytest.mark.parametrize("how", ["revoked", "other_roles", "signed_out"])
async def test_a_reader_that_would_not_be_let_in_again_is_sent_away(api: Api, how: str) -> None:
    name, services = f"leaver-{how.replace('_', '-')}", api.services
    async with api.client("admin") as admin:
        assert (await admin.post("/v1/users", json={"name": name, "roles": ["requester"]})).status_code == 201
        who = await of_token(services, (await admin.post(f"/v1/users/{name}/tokens", json={})).json()["token"])
        conversation_id = await conversation(admin)
    if how == "signed_out":
        async with services.db.transaction(who.tenant_id) as tx:
            begun = await sign_in.begin_session(tx, who.user_id, timedelta(hours=1), Credential(How.PASSWORD))
        who = replace(who, session_id=begun.id)
    streams = Streams(services.db, services.live, services.wakes, heartbeat_seconds=0.05)
    welcome = partial(is_welcome, services, who)
    async with aclosing(streams.frames(who.tenant_id, conversation_id, Cursor(), welcome=welcome)) as stream:
        for _ in range(3):
            assert await anext(stream) == b": ping\n\n"
        async with services.db.transaction(who.tenant_id) as tx:
            if how == "revoked":
                await tx.execute("UPDATE api_tokens SET revoked_at = now() WHERE token_sha256 = $1", who.token_sha256)
            elif how == "signed_out":
                await sign_in.end_session(tx, begun.id, who.user_id, "signed out")
            else:
                await users.set_roles(tx, name, ("requester", "reviewer"), api.people["admin"].user_id)
        async with asyncio.timeout(20):
            assert {frame async for frame in stream} <= {b": ping\n\n"}


async def test_one_stream_more_than_somebody_may_hold_open_is_refused_until_one_is_closed(api: Api) -> None:
    held = OpenStreams(1, 9)
    async with api.client() as client, api.client("admin") as other:
        path = f"/v1/conversations/{await conversation(client)}/stream"
        async with having(api, open_streams=held):
            async with reading(client, path):
                for asked in (path, "/v1/approvals/stream"):
                    refused = await client.get(asked)
                    assert refusal(refused) == (429, "too_many_streams")
                    assert int(refused.headers["retry-after"]) > 0
                api.app.state.services = replace(api.app.state.services, local=True)
                async with reading(client, path), reading(other, path):
                    api.app.state.services = replace(api.app.state.services, local=False)
            await until(lambda: not held._of, seconds=30)  # the server hears of it in its own time
            async with reading(client, path):
                pass
