"""The rows that a new turn loads in one transaction: its message, working memory and earlier requests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import asyncpg
import structlog
from pydantic import JsonValue

from perdure.contracts.activities import LoadRequest
from perdure.contracts.approvals import RequestKind, RequestRef
from perdure.contracts.calls import ModelCall
from perdure.contracts.ids import effect_key, step_of
from perdure.contracts.messages import CallRef, MessageRef, Role, WindowPolicy
from perdure.contracts.turns import TurnAddress, Usage
from perdure.contracts.values import Tolerant
from perdure.core.agents.prompts import (
    LEFT_OUT,
    PromptMessage,
    WindowedMessage,
    halve_window,
    select_messages,
    tokens_left_out,
)
from perdure.core.agents.skills import SkillLoad
from perdure.core.agents.templates import fill_variables
from perdure.core.approvals.refusals import ReviewRefusal, note_about, refusal_of, refused_result
from perdure.core.calls.rounds import fold_rounds, is_in, range_bounds, ranges_of, steps_in
from perdure.core.text import preview, restore_previews
from perdure.core.transcript import CallRound, keep_rounds
from perdure.store.agents import EXEMPT_TOOLS, RULE_ACTIONS
from perdure.store.approvals.verdicts import comments_of, refusal_texts, refusals_of
from perdure.store.calls.model_calls import PastMessages
from perdure.store.database import Connection
from perdure.store.memory.working_memory import TOUCH, read

_SECONDS = 2.0
"""The maximum time that a turn waits for its template's text."""


@dataclass(frozen=True, slots=True)
class PauseRequests:
    """The requests for which a turn is paused."""

    requests: tuple[RequestRef, ...]
    round: MessageRef | None
    """The assistant message whose calls the gate holds; None at a checkpoint, which removes no calls."""
    earlier: tuple[MessageRef, ...]
    """The completed rounds before it with their answers, and the messages that were added to the turn. A warm resume
    would still have them in memory."""
    snapshot: dict[str, JsonValue]
    """The state that the pause stored; empty if it did not store all of it."""


_TURN_MESSAGES = """
SELECT id, role, content, tokens, calls, call_id FROM messages
WHERE conversation_id = $1 AND turn_id = $2 AND (role IN ('assistant', 'tool') OR joins <> '') ORDER BY seq
"""


async def find_pause(tx: Connection, address: TurnAddress) -> PauseRequests | None:
    """Returns the gate or checkpoint at which the turn is paused, or None if it has passed all its requests.

    A round that was denied as a whole stays planned forever, so the latest round with an unsettled call counts. All its
    requests belong to the gate, including those of calls that have run by now. A warm resume carries the outcomes of
    those calls; here they come from the ledger. A checkpoint is passed as soon as the model is called again.
    """
    rows = await tx.fetch(
        "SELECT a.id, a.kind, a.call_id, a.tool, a.expires_at, a.snapshot, "
        "coalesce(c.state NOT IN ('done', 'failed', 'denied'), false) AS to_run, "
        "(SELECT max(substr(call_id, 2)::integer) FROM model_calls WHERE turn_id = $1) AS step "
        "FROM approvals a LEFT JOIN tool_calls c ON c.turn_id = a.turn_id AND c.call_id = a.call_id "
        # A cancelled checkpoint means that the turn continued without it; a cancelled approval is still a gate.
        "WHERE a.turn_id = $1 AND (a.status <> 'cancelled' OR a.kind = 'approval') ORDER BY a.call_id",
        address.turn_id,
    )
    # Sorted by number: as text, t10.0 comes before t2.0.
    waiting = [row for row in rows if _is_ahead(row)]
    if not waiting:
        return None
    latest = max(step_of(row["call_id"]) for row in waiting)
    gated = [row for row in rows if step_of(row["call_id"]) == latest]
    # A limit that is reached after a checkpoint is requested after it, under the same step.
    limits = [row for row in waiting if row["kind"] == RequestKind.LIMIT and row in gated]
    checkpoints = limits or [row for row in waiting if row["kind"] == RequestKind.CHECKPOINT and row in gated]
    if checkpoints:
        return PauseRequests(tuple(map(_read_request, checkpoints)), None, (), _full_snapshot(checkpoints))
    gated = [row for row in gated if row["kind"] == RequestKind.APPROVAL]
    requests = tuple(map(_read_request, gated))
    messages = await tx.fetch(_TURN_MESSAGES, address.conversation_id, address.turn_id)
    refs = [_message(row) for row in messages]
    first = requests[0].call_id
    positions = [position for position, ref in enumerate(refs) if any(call.call_id == first for call in ref.calls)]
    if not positions:
        return None
    return PauseRequests(requests, refs[positions[-1]], _answered_rounds(refs[: positions[-1]]), _full_snapshot(gated))


def _is_ahead(row: asyncpg.Record) -> bool:
    """Returns whether the request is still ahead of a restarted turn."""
    if row["kind"] in (RequestKind.CHECKPOINT, RequestKind.LIMIT):
        return bool(step_of(row["call_id"]) >= (row["step"] or 0))
    return bool(row["to_run"])


def _full_snapshot(rows: Sequence[asyncpg.Record]) -> dict[str, JsonValue]:
    """Returns the snapshot from which a cold resume restores its state. All requests of a pause share one snapshot."""
    kept: dict[str, JsonValue] = rows[-1]["snapshot"]
    return {name: value for name, value in kept.items() if name != "metadata"} if "messages" in kept else {}


def _answered_rounds(refs: list[MessageRef]) -> tuple[MessageRef, ...]:
    """Returns the rounds whose calls are all answered, and the messages added between them. A denied round has no
    answers, so its calls stay removed."""
    answers = {ref.call_id: ref.id for ref in refs if ref.role is Role.TOOL}
    rounds = [CallRound(ref.id, tuple(call.call_id for call in ref.calls), answers) for ref in refs if ref.calls]
    by_id = {ref.id: ref for ref in refs}
    kept = {each.message_ids[0]: each.message_ids for each in keep_rounds(rounds, {})}
    kept |= {ref.id: (ref.id,) for ref in refs if ref.role is Role.USER}
    return tuple(fold_rounds([by_id[message_id] for ref in refs for message_id in kept.get(ref.id, ())]))


def _read_request(row: asyncpg.Record) -> RequestRef:
    return RequestRef(
        request_id=str(row["id"]),
        kind=RequestKind(row["kind"]),
        call_id=row["call_id"],
        tool=row["tool"],
        expires_at=row["expires_at"],
    )


def _message(row: asyncpg.Record) -> MessageRef:
    return MessageRef(
        id=str(row["id"]),
        role=Role(row["role"]),
        text=preview(row["content"]),
        tokens=row["tokens"],
        calls=tuple(CallRef.model_validate(call) for call in row["calls"]),
        call_id=row["call_id"] or "",
    )


_log = structlog.get_logger(__name__)

_RESOLVE = """
SELECT v.id, v.stage, v.text FROM prompt_versions v, turns t
WHERE t.id = $1 AND v.template = $2 AND (v.stage = 'active' OR (v.stage = 'draft' AND v.author = t.user_id))
ORDER BY v.stage = 'draft' DESC LIMIT 1
"""


class TurnPersona(Tolerant):
    """The source of a turn's persona, as stored on its row."""

    template: str
    version_id: str = ""
    stage: str = ""
    text: str = ""
    """The rendered text; empty if the agent's own persona is used."""
    problem: str = ""
    """The reason why the agent's own persona is used: `not_found`, `empty` or `unavailable`."""


async def fix_persona(tx: Connection, turn_id: str, template: str, values: dict[str, str]) -> TurnPersona:
    """Resolves the template for the tenant and the turn's user, renders it, and stores it with the turn. The user's own
    draft comes first.

    If a template cannot be read, the turn uses the agent's own persona; the agent's tools do not depend on the
    template. The result is stored, even after a failure, so that every model call of the turn sends the same prompt.

    Raises: the database's errors if Postgres is unavailable.
    """
    persona = await _render_persona(tx, turn_id, template, values)
    kept = persona.model_dump(mode="json", exclude_defaults=True)
    await tx.execute("UPDATE turns SET persona = $2 WHERE id = $1", turn_id, kept)
    return persona


async def _render_persona(tx: Connection, turn_id: str, template: str, values: dict[str, str]) -> TurnPersona:
    await tx.execute("SAVEPOINT persona")  # Without a savepoint, a failed statement would abort the whole transaction.
    try:
        row = await tx.fetchrow(_RESOLVE, turn_id, template, timeout=_SECONDS)
    except (asyncpg.PostgresError, TimeoutError) as error:
        await tx.execute("ROLLBACK TO SAVEPOINT persona")
        _log.warning("prompt_template_unavailable", template=template, error=type(error).__name__)
        return TurnPersona(template=template, problem="unavailable")
    if row is None:
        return TurnPersona(template=template, problem="not_found")
    found = TurnPersona(template=template, version_id=str(row["id"]), stage=row["stage"])
    text = fill_variables(row["text"], values)
    return found.model_copy(update={"text": text} if text.strip() else {"problem": "empty"})


SKILL_LOADS = """
SELECT jsonb_agg(jsonb_build_array(skill_id, (SELECT count(*) FROM turns later WHERE later.conversation_id = $1
  AND later.created_at > loaded.at AND later.created_at <= t.created_at)) ORDER BY at, skill_id)
FROM (SELECT skill_id, max(o.created_at) AS at FROM injection_ledger l JOIN turns o ON o.id = l.turn_id
  WHERE l.conversation_id = $1 AND l.turn_id <> $2 GROUP BY skill_id) AS loaded
"""
"""A subselect of the skills that other turns of the conversation (`$1`) loaded, in their order: id, and the number of
turns since then. `$2` is this turn's id, `t` its row."""


async def mark_injected(tx: Connection, address: TurnAddress, skill_ids: Sequence[str], tier: int) -> None:
    """Records that this turn injects these skills. Repeated calls add no rows. The ledger has the skills that each turn
    of a conversation injected, by tier."""
    await tx.execute(
        "INSERT INTO injection_ledger (tenant_id, conversation_id, skill_id, turn_id, tier) "
        "SELECT $1, $2, skill_id, $3, $5 FROM unnest($4::text[]) AS skill_id ON CONFLICT DO NOTHING",
        address.tenant_id,
        address.conversation_id,
        address.turn_id,
        list(skill_ids),
        tier,
    )


@dataclass(frozen=True, slots=True)
class LoadedTurn:
    """The rows from which a turn starts. Optional fields are empty if the turn is new."""

    user_message: MessageRef
    user_text: str
    """The full text."""
    user_id: str
    user_name: str
    user_role: str
    metadata: dict[str, JsonValue]
    limits: dict[str, JsonValue]
    working: dict[str, JsonValue]
    skill_loads: tuple[SkillLoad, ...]
    """Skills that earlier turns of the conversation loaded, in their order."""
    pause: PauseRequests | None
    """Set if the turn is restarted and had opened a gate."""
    used: Usage
    memory_text: str | None
    """Set if the turn was loaded before; the text injected then is kept."""
    events_through: int
    """The number of the last event that the turn's nodes wrote."""
    rule_actions: dict[str, str]
    """The tenant's actions for rules (`perdure/store/agents.py`)."""
    exempt_tools: tuple[str, ...]
    """The tools that the tenant exempts from approval."""
    exempt_at_load: tuple[str, ...]
    """The exempt tools that an earlier load of the turn used."""
    persona: dict[str, JsonValue] | None = None
    """The persona from a template that an earlier load fixed."""


_LOAD = f"""
WITH {TOUCH}
SELECT t.metadata, t.limits, t.memory_text, t.persona, t.events_through, t.attempts, t.ended_at, t.stop_requested_at,
  m.id AS message_id, t.input_tokens, t.output_tokens, t.cost_microusd, m.content, m.tokens, u.name, u.display_name,
  u.id AS user_id, u.roles, ({SKILL_LOADS}) AS skill_loads, {RULE_ACTIONS} AS rule_actions,
  {EXEMPT_TOOLS} AS waivers, t.waived_tools,
  (SELECT jsonb_object_agg(field, value) FROM live) AS working
FROM turns t JOIN messages m ON m.id = t.message_id JOIN users u ON u.id = t.user_id WHERE t.id = $2 FOR UPDATE OF t
"""


async def load_turn(tx: Connection, request: LoadRequest) -> LoadedTurn | None:
    """Returns everything that a new turn needs, or None if the turn has ended or was asked to stop."""
    row = await tx.fetchrow(_LOAD, request.address.conversation_id, request.address.turn_id)
    if row is None or row["ended_at"] or row["stop_requested_at"]:
        return None
    pause, working = None, row["working"]
    if row["attempts"]:
        # The turn is restarted, so that run's own writes are read again. If the statement above waited for the turn's
        # lock, it saw all other rows as they were before the wait.
        pause = await find_pause(tx, request.address)
        working = await read(tx, request.address.conversation_id)
    return LoadedTurn(
        MessageRef(id=str(row["message_id"]), role=Role.USER, text=preview(row["content"]), tokens=row["tokens"]),
        row["content"],
        str(row["user_id"]),
        row["display_name"] or row["name"],
        row["roles"][0] if row["roles"] else "",
        row["metadata"],
        row["limits"],
        working or {},
        tuple(SkillLoad(skill_id, turns_ago) for skill_id, turns_ago in row["skill_loads"] or ()),
        pause,
        Usage(input_tokens=row["input_tokens"], output_tokens=row["output_tokens"], cost_microusd=row["cost_microusd"]),
        row["memory_text"],
        row["events_through"],
        row["rule_actions"],
        tuple(row["waivers"]),
        tuple(row["waived_tools"]),
        row["persona"],
    )


async def keep_memory_text(tx: Connection, turn_id: str, text: str, *, remembers: bool = False) -> None:
    """Fixes the memory text that this turn injects, so that every model call of the turn sends the same text.

    With `remembers`, a summary of the turn is stored when it completes.
    """
    await tx.execute("UPDATE turns SET memory_text = $2, remembers = $3 WHERE id = $1", turn_id, text, remembers)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message with its full text."""

    id: str
    turn_id: str
    role: Role
    content: str
    calls: list[dict[str, JsonValue]]
    call_id: str
    tokens: int

    @property
    def of_round(self) -> tuple[int, ...]:
        """The position in the turn's rounds: the step, then the number of the answered call from 1 on, or 0 for the
        message with the calls. Empty for a message that belongs to no round."""
        call_id = self.call_id or (str(self.calls[0]["call_id"]) if self.calls else "")
        if not call_id.startswith("t"):
            return ()
        return (step_of(call_id), int(call_id.partition(".")[2]) + 1 if self.call_id else 0)


_PAST = "conversation_id = $1 AND seq <= $2 AND in_transcript"
_BODIES = f"""
SELECT true AS past, id, turn_id, role, content, calls, call_id, tokens, seq FROM (
  SELECT * FROM messages WHERE {_PAST} AND seq >= $4 ORDER BY seq DESC LIMIT $5) AS recent UNION
SELECT true, id, turn_id, role, content, calls, call_id, tokens, seq FROM messages WHERE {_PAST} AND seq = $6 UNION ALL
SELECT false, id, turn_id, role, content, calls, call_id, tokens, seq FROM messages WHERE id = ANY($3)
"""
_START = f"""
SELECT least(min(seq) FILTER (WHERE before >= $3), max(seq) FILTER (WHERE role <> 'tool')) FROM (
  SELECT seq, role, sum(tokens) OVER (ORDER BY seq) - tokens AS before FROM messages WHERE {_PAST}) AS sized
"""
"""The first message after the oldest `$3` tokens, or the newest round if all of them are older."""
IN_ROUNDS = """
conversation_id = {conversation} AND turn_id = {turn} AND EXISTS (
  SELECT FROM unnest({firsts}::integer[], {lasts}::integer[]) AS each (first, last)
  WHERE substring(coalesce(call_id, calls->0->>'call_id') FROM '^t([0-9]+)')::integer BETWEEN first AND last)
"""
"""The condition for the messages of rounds, by ranges of their steps (`MessageRef.rounds`)."""
_WITH_ROUNDS = f"""
{_BODIES} UNION ALL
SELECT false, id, turn_id, role, content, calls, call_id, tokens, seq FROM messages
WHERE {IN_ROUNDS.format(conversation="$1", turn="$7", firsts="$8", lasts="$9")}
"""


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a conversation that a model call receives."""

    policy: WindowPolicy
    """The agent's own window."""
    past_tokens: int | None
    """The maximum tokens of earlier turns, in addition to `policy`."""
    compacted: bool = False
    """True if the window is halved, because an earlier attempt was too long for the model."""


async def _find_start(tx: Connection, conversation_id: str, past: PastMessages, window: Window) -> int:
    """Returns the `seq` of the first message of the past that the window can use. Reads no message's body."""
    left_out = 0 if window.past_tokens is None else tokens_left_out(past.tokens, window.past_tokens)
    if window.policy.max_tokens is not None:
        left_out = max(left_out, past.tokens - window.policy.max_tokens)
    start = await tx.fetchval(_START, conversation_id, past.through_seq, left_out) if left_out else None
    return start or 0


async def _read_bodies(
    tx: Connection, call: ModelCall, past: PastMessages, start: int, window: WindowPolicy
) -> tuple[list[StoredMessage], list[StoredMessage | MessageRef]]:
    """Returns the conversation up to the turn's start, oldest first, and the messages of the turn in the order of the
    call, in one statement. Rounds are replaced by their messages; what is not stored stays a reference.

    Of the past, it reads only what the window can use: from `start` on, and the first user message if it is kept.
    """
    limit = None if window.max_messages is None else window.max_messages * 2 + 1
    ids = [ref.id for ref in call.ask.messages if ref.id]
    firsts, lasts = range_bounds(ranges_of(call.ask.messages))
    first_user = past.first_user if window.keep_first_user else 0
    given = call.address.conversation_id, past.through_seq, ids, start, limit, first_user
    rows = (
        await tx.fetch(f"{_WITH_ROUNDS} ORDER BY seq", *given, call.address.turn_id, firsts, lasts)
        if firsts
        else await tx.fetch(f"{_BODIES} ORDER BY seq", *given)
    )
    earlier = [_stored(row) for row in rows if row["past"]]
    own = {str(row["id"]): _stored(row) for row in rows if not row["past"]}
    of_rounds = sorted((each for each in own.values() if each.of_round), key=lambda each: each.of_round)
    messages: list[StoredMessage | MessageRef] = []
    for ref in call.ask.messages:
        if ref.refused:
            messages += [ref.model_copy(update={"refused": ((step, step),)}) for step in steps_in(ref.refused)]
        elif ref.rounds:
            messages += [each for each in of_rounds if is_in(each.of_round[0], ref.rounds)]
        else:
            messages.append(own.get(ref.id, ref))
    return earlier, messages


async def round_messages(tx: Connection, address: TurnAddress, rounds: Sequence[tuple[int, int]]) -> list[str]:
    """Returns the ids of the messages of the turn's rounds in these ranges of steps."""
    firsts, lasts = range_bounds(rounds)
    where = IN_ROUNDS.format(conversation="$1", turn="$2", firsts="$3", lasts="$4")
    sql = f"SELECT id FROM messages WHERE {where}"
    return [str(row["id"]) for row in await tx.fetch(sql, address.conversation_id, address.turn_id, firsts, lasts)]


def _stored(row: asyncpg.Record) -> StoredMessage:
    return StoredMessage(
        str(row["id"]),
        str(row["turn_id"]),
        Role(row["role"]),
        row["content"],
        row["calls"],
        row["call_id"] or "",
        row["tokens"],
    )


@dataclass(frozen=True, slots=True)
class KeptMessages:
    """The messages for the model within the window, oldest first."""

    messages: list[PromptMessage]
    left_out: int
    """Messages of earlier turns that are not among them."""


async def prompt_messages(
    tx: Connection, call: ModelCall, past: PastMessages, window: Window, skills: Mapping[str, str]
) -> KeptMessages:
    """Returns the messages for the model. `skills` are texts by skill id.

    If the call has structured output, the window applies only to the past; all messages of the step itself are sent.
    """
    turn_id = call.address.turn_id
    quoted = [request_id for ref in call.ask.messages for request_id in ref.quotes]
    comments = await comments_of(tx, turn_id, quoted) if quoted else {}
    refused = [steps for ref in call.ask.messages for steps in ref.refused]
    refusals = await refusal_texts(tx, turn_id, refused) if refused else {}
    policy = window.policy
    start = await _find_start(tx, call.address.conversation_id, past, window)
    earlier, own = await _read_bodies(tx, call, past, start, policy)
    all_messages: list[StoredMessage | MessageRef] = [*earlier, *own]
    windowed = [_window_message(index, message) for index, message in enumerate(all_messages)]
    if call.ask.output is not None:
        windowed[len(earlier) :] = [replace(message, tokens=0) for message in windowed[len(earlier) :]]
    kept = select_messages(windowed, halve_window(windowed, policy) if window.compacted else policy)
    sent = [earlier[index] for index in kept if index < len(earlier)]
    not_approved = await _refused_results(tx, sent) if past.has_requests else {}
    messages = []
    for index in kept:
        message = all_messages[index]
        refusal = not_approved.get(message.id)
        messages += (
            [_prompt_message(message, skills, comments, refusals)]
            if refusal is None or not isinstance(message, StoredMessage)
            else _not_approved_messages(message, refusal)
        )
    if window.past_tokens is not None and policy.keep_first_user and 0 < past.first_user < start:
        messages.insert(1, PromptMessage(Role.USER, LEFT_OUT))  # the next message does not answer the first one
    return KeptMessages(messages, past.messages - sum(index < len(earlier) for index in kept))


async def _refused_results(tx: Connection, earlier: Sequence[StoredMessage]) -> dict[str, ReviewRefusal]:
    """Returns the results and answers among these messages of earlier turns that were not approved, by message id."""
    results = [each for each in earlier if each.role is not Role.USER]
    by_turn = await refusals_of(tx, {each.turn_id for each in results}) if results else {}
    reviews = {turn_id: [each for each in refusals if each.is_checkpoint] for turn_id, refusals in by_turn.items()}
    found = {
        each.id: refusal_of(each.role, each.content, each.call_id, reviews.get(each.turn_id, ())) for each in results
    }
    return {message_id: refusal for message_id, refusal in found.items() if refusal is not None}


def _not_approved_messages(message: StoredMessage, refusal: ReviewRefusal) -> list[PromptMessage]:
    """Returns a result that contains its refusal, or an answer and a note about its refusal."""
    if message.role is Role.TOOL:
        return [PromptMessage(Role.TOOL, refused_result(message.content, refusal), (), _answers(message))]
    answer = PromptMessage(message.role, message.content, message.calls)
    return [answer, PromptMessage(Role.SYSTEM, note_about(refusal))]


_NO_RECORD = "A round of calls was refused. Its calls have not run, and the reasons are no longer stored."


def _window_message(index: int, message: StoredMessage | MessageRef) -> WindowedMessage:
    if isinstance(message, StoredMessage):
        return WindowedMessage(index, message.role, message.tokens, _keys(message), _answers(message))
    return WindowedMessage(index, message.role, message.tokens, (), message.call_id)


def _prompt_message(
    message: StoredMessage | MessageRef,
    skills: Mapping[str, str],
    comments: Mapping[str, str],
    refusals: Mapping[int, str],
) -> PromptMessage:
    if isinstance(message, StoredMessage):
        return PromptMessage(message.role, message.content, message.calls, _answers(message))
    if message.refused:
        return PromptMessage(message.role, refusals.get(message.refused[0][0], _NO_RECORD))
    text = restore_previews(message.text, [comments[each] for each in message.quotes if each in comments])
    return PromptMessage(message.role, skills.get(message.skill_id, text))


def _keys(message: StoredMessage) -> tuple[str, ...]:
    return tuple(str(each["key"]) for each in message.calls)


def _answers(message: StoredMessage) -> str:
    return effect_key(message.turn_id, message.call_id) if message.call_id else ""
