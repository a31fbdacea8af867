"""The client for asyncio: the same names as the blocking one, as coroutines."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import wraps
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

import httpx
from pydantic import ValidationError

from perdure.client import agents, approvals, calls, identity, turns
from perdure.client import delivery as webhook_calls
from perdure.client import status as status_calls
from perdure.client.connection import (
    PATIENCE_SECONDS,
    TIMEOUT,
    Decoder,
    Event,
    Reader,
    http_options,
    is_success,
    poll_seconds,
    unreadable_answer,
)
from perdure.client.requests import Call, RetryBudget
from perdure.schemas.turns import Turn


# Each method of these classes sends the `Call` that a function of the subject's module builds.
class Auth:
    """The caller, sign-in methods and registration."""

    def __init__(self, client: "AsyncClient") -> None:
        self.me = client.method(identity.get_me)
        self.ways = client.method(identity.get_sign_in_methods)
        self.code = client.method(identity.create_sign_in_code)
        self.register = client.method(identity.register)


class Approvals:
    """Approval requests and the decisions on them."""

    def __init__(self, client: "AsyncClient") -> None:
        self.list = client.method(approvals.list_approvals)
        self.get = client.method(approvals.get_approval)
        self.preview = client.method(approvals.preview)
        self.counts = client.method(approvals.count_approvals)
        self.decided = client.method(approvals.list_decided)
        self.decide = client.method(approvals.decide)
        self.decide_many = client.method(approvals.decide_many)
        self.withdraw = client.method(approvals.withdraw)
        self.claim = client.method(approvals.claim)
        self.release = client.method(approvals.release)
        self.reassign = client.method(approvals.reassign)
        self.escalate = client.method(approvals.escalate)
        self.ageing = client.method(approvals.ageing)
        self.audit = client.method(approvals.list_audit)


class Delegations:
    """Delegations of the caller's decisions to other users."""

    def __init__(self, client: "AsyncClient") -> None:
        self.list = client.method(approvals.list_delegations)
        self.add = client.method(approvals.add_delegation)
        self.remove = client.method(approvals.remove_delegation)


class Files:
    """Files of conversations: uploaded by users or created by turns."""

    def __init__(self, client: "AsyncClient") -> None:
        self.upload = client.method(turns.upload_file)
        self.list = client.method(turns.list_files)
        self.read = client.method(turns.read_file)
        self.delete = client.method(turns.delete_file)
        self.usage = client.method(turns.usage)


class Effects:
    """Effects whose outcome is unknown after a crash."""

    def __init__(self, client: "AsyncClient") -> None:
        self.list = client.method(calls.list_effects)
        self.get = client.method(calls.get_effect)
        self.settle = client.method(calls.settle_effect)


class Agents:
    """Agents and their tools."""

    def __init__(self, client: "AsyncClient") -> None:
        self.list = client.method(agents.list_agents)
        self.get = client.method(agents.get_agent)
        self.tools = client.method(agents.list_tools)


class Topologies:
    """Topologies: the graphs that agents run on."""

    def __init__(self, client: "AsyncClient") -> None:
        self.list = client.method(agents.list_topologies)
        self.get = client.method(agents.get_topology)
        self.drawing = client.method(agents.topology_drawing)


class Users:
    """Users, their roles and their tokens."""

    def __init__(self, client: "AsyncClient") -> None:
        self.list = client.method(agents.list_users)
        self.add = client.method(agents.add_user)
        self.new_token = client.method(agents.new_token)
        self.set_roles = client.method(agents.set_roles)


class Budgets:
    """Daily budgets."""

    def __init__(self, client: "AsyncClient") -> None:
        self.get = client.method(agents.get_budgets)
        self.set = client.method(agents.set_budgets)


class Rules:
    """Rules, and the tools that a tenant can exempt from approval."""

    def __init__(self, client: "AsyncClient") -> None:
        self.list = client.method(agents.list_rules)
        self.set = client.method(agents.set_rule)
        self.tools = client.method(agents.list_exemptible_tools)
        self.set_tool = client.method(agents.set_tool_approval)


class Prompts:
    """Prompt templates and their stages."""

    def __init__(self, client: "AsyncClient") -> None:
        self.list = client.method(agents.list_prompts)
        self.get = client.method(agents.get_prompt)
        self.render = client.method(agents.render_prompt)
        self.version = client.method(agents.get_prompt_version)
        self.save_draft = client.method(agents.save_draft)
        self.promote = client.method(agents.promote_prompt)
        self.archive = client.method(agents.archive_prompt)


class Status:
    """The status of the deployment."""

    def __init__(self, client: "AsyncClient") -> None:
        self.get = client.method(status_calls.get_status)


class Team:
    """The user accounts of the tenant, for its administrators."""

    def __init__(self, client: "AsyncClient") -> None:
        self.list = client.method(identity.list_team)
        self.invite = client.method(identity.invite)
        self.invite_again = client.method(identity.invite_again)
        self.close = client.method(identity.close)
        self.reopen = client.method(identity.reopen)


class Webhooks:
    """Webhooks for approval events."""

    def __init__(self, client: "AsyncClient") -> None:
        self.list = client.method(webhook_calls.list_webhooks)
        self.add = client.method(webhook_calls.add_webhook)
        self.remove = client.method(webhook_calls.remove_webhook)


P = ParamSpec("P")
T = TypeVar("T")


class AsyncClient:
    """A client of Perdure's API for asyncio.

    Every method raises ApiError. Repeating a change is harmless, so requests are retried while the API is unavailable.
    """

    def __init__(
        self,
        base_url: str,
        token: str = "",
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        headers: Mapping[str, str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Sends `headers` with every request. `transport` replaces the network connection; the pages use this."""
        self._http = httpx.AsyncClient(**http_options(base_url, token, headers), transport=transport)
        self._base_url = base_url
        self._patience_seconds = patience_seconds
        self.conversations = Conversations(self)
        self.turns = Turns(self)
        self.auth = Auth(self)
        self.approvals = Approvals(self)
        self.delegations = Delegations(self)
        self.effects = Effects(self)
        self.files = Files(self)
        self.agents = Agents(self)
        self.topologies = Topologies(self)
        self.users = Users(self)
        self.prompts = Prompts(self)
        self.budgets = Budgets(self)
        self.rules = Rules(self)
        self.status = Status(self)
        self.team = Team(self)
        self.webhooks = Webhooks(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def send(self, call: Call[T]) -> T:
        """Sends a call and returns its response. All other methods send their calls with it."""
        retries = RetryBudget(self._base_url, self._patience_seconds)
        while True:
            try:
                response = await self._http.request(call.method, call.path, **call.arguments())
            except httpx.TransportError as error:
                await asyncio.sleep(retries.wait_after_failure(error, time.monotonic(), may_repeat=call.may_repeat))
                continue
            if not is_success(response):
                await asyncio.sleep(retries.wait_after_answer(response, time.monotonic()))
                continue
            try:
                return call.parse(response)
            except ValidationError as error:
                raise unreadable_answer(response, error) from error

    def method(self, make: Callable[P, Call[T]]) -> Callable[P, Awaitable[T]]:
        """Returns a coroutine function that sends the calls that `make` builds."""

        @wraps(make)
        async def send(*args: P.args, **kwargs: P.kwargs) -> T:
            return await self.send(make(*args, **kwargs))

        return send

    async def read(self, reader: Reader) -> AsyncGenerator[Event, None]:
        """Yields the events of a stream; reconnects as often as necessary."""
        retries = RetryBudget(self._base_url, self._patience_seconds)
        while not reader.is_over:
            try:
                async with self._http.stream("GET", reader.path, headers=reader.headers(), timeout=TIMEOUT) as response:
                    reader.record_response(response)
                    if is_success(response):
                        decoder = Decoder()
                        async for chunk in response.aiter_bytes():
                            retries.reset()
                            for event in decoder.feed(chunk):
                                reader.record_event(event)
                                yield event
                        wait = 0.0 if reader.is_over else retries.wait_after_stream_end(time.monotonic())
                    else:
                        await response.aread()
                        wait = retries.wait_after_answer(response, time.monotonic())
            except httpx.TransportError as error:
                wait = retries.wait_after_failure(error, time.monotonic())
            await asyncio.sleep(wait)


class Conversations:
    """Conversations of the caller."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.create = client.method(turns.create_conversation)
        self.list = client.method(turns.list_conversations)
        self.get = client.method(turns.get_conversation)
        self.rename = client.method(turns.rename_conversation)
        self.delete = client.method(turns.delete_conversation)
        self.messages = client.method(turns.list_messages)
        self.story = client.method(turns.conversation_story)

    def events(self, conversation_id: str, *, after: str | None = None) -> AsyncGenerator[Event, None]:
        """Yields the events of the conversation indefinitely; leave the loop to stop."""
        return self._client.read(Reader.of_conversation(conversation_id, after))


class Turns:
    """Turns. A start that is retried starts one turn only."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.start = client.method(turns.start_turn)
        self.execute = client.method(turns.execute)
        self.get = client.method(turns.get_turn)
        self.list = client.method(turns.list_turns)
        self.segments = client.method(turns.turn_segments)
        self.metrics = client.method(turns.turn_metrics)
        self.calls = client.method(turns.list_calls)
        self.stop = client.method(turns.stop_turn)
        self.question = client.method(turns.get_question)
        self.answer = client.method(turns.answer_question)
        self.raise_limits = client.method(turns.raise_limits)

    def events(self, turn_id: str, *, after: str | None = None) -> AsyncGenerator[Event, None]:
        """Yields the turn's events from its beginning, or after the event with the id `after`, until the turn ends."""
        return self._client.read(Reader.of_turn(turn_id, after))

    async def wait(self, turn_id: str, *, timeout_seconds: float | None = None, through_pauses: bool = False) -> Turn:
        """Waits until the turn has ended or is paused, and returns it. With `through_pauses`, waits until it has ended.

        Raises: TimeoutError; ApiError.
        """
        started_at = time.monotonic()
        while True:
            turn = await self.get(turn_id)
            if turn.has_ended or (turn.is_paused and not through_pauses):
                return turn
            await asyncio.sleep(poll_seconds(time.monotonic() - started_at, timeout_seconds, turn))
