"""The records of a turn in memory: replies, a ledger of calls, approvals. Its ports are in tests/doubles/ports.py."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pydantic import JsonValue

from perdure.contracts.activities import Verdicts
from perdure.contracts.agents import OnLength, PlanCard
from perdure.contracts.approvals import RequestKind, VerdictState
from perdure.contracts.calls import CallState, EffectClass, ModelCallRequest, ModelReply, ToolCallRequest, ToolOutcome
from perdure.contracts.errors import Problem
from perdure.contracts.ids import approval_id, reviewed_call, step_of, tool_call_id
from perdure.contracts.memory import Fact, FactScope, FactsRequest
from perdure.contracts.messages import CallRef, MessageRef, Role
from perdure.contracts.skills import PlanSkill, Rule
from perdure.contracts.turns import Limits, Usage
from perdure.contracts.values import canonical_json, digest_of
from perdure.core.agents.prompts import with_changed_arguments
from perdure.core.agents.rules import plain_facts
from perdure.core.agents.skills import LOAD_SKILL
from perdure.core.agents.toolsets import LOAD_TOOLSET, load
from perdure.core.calls.endings import FinishReason
from perdure.core.calls.rounds import is_in
from perdure.core.text import preview
from tests.doubles.fake_context import FakeContext

NOW = datetime(2026, 3, 1, tzinfo=UTC)
TURN_ID = "0197f000-0000-7000-8000-000000000001"
Args = dict[str, JsonValue]
USAGE = Usage(input_tokens=10, output_tokens=5, cost_microusd=100)
LIMITS = Limits()


class Refused(Exception):
    """A fake tool's definite no."""


class Ambiguous(Exception):
    """A fake tool's call broke off after it was sent."""


@dataclass(frozen=True, slots=True)
class Says:
    text: str = ""
    calls: Sequence[tuple[str, Mapping[str, JsonValue]]] = ()
    usage: Usage = USAGE
    problem: Problem | None = None
    ends: FinishReason = "stop"  # how the model ends it; `tool_calls` where there are calls
    turn_used: Usage | None = None  # where attempts have broken off before it: what the turn has used with them


@dataclass(slots=True)
class Row:
    call_id: str
    tool: str
    args: Args
    effect: EffectClass
    gated: bool
    state: CallState = CallState.PLANNED
    outcome: ToolOutcome | None = None
    comment: str = ""  # of the person who settled it


@dataclass(slots=True)
class Record:
    call_id: str
    kind: RequestKind = RequestKind.APPROVAL
    tool: str = ""
    snapshot: Args = field(default_factory=dict)
    round: MessageRef | None = None  # of an edited checkpoint: the message that makes its call again
    state: VerdictState = VerdictState.PENDING
    comment: str = ""
    args: Args | None = None
    decided_by: str = ""


BY_PEOPLE = frozenset({VerdictState.APPROVED, VerdictState.EDITED, VerdictState.REJECTED, VerdictState.RESPONDED})
"""States that a reviewer decides; the others come by themselves."""

Behaviour = Callable[[Args], JsonValue | tuple[JsonValue, Args]]
"""A fake tool returns its answer, or a pair with the state that it updates; `state` has the state that it reads."""


def _place(message: MessageRef) -> tuple[int, int]:
    """The step of a round's message, and its place there; the message with the calls is the first."""
    call_id = message.call_id or (message.calls[0].call_id if message.calls else "")
    if not call_id.startswith("t"):
        return (0, 0)
    return step_of(call_id), int(call_id.partition(".")[2]) if message.call_id else -1


@dataclass(slots=True)
class FakeTurn:
    cards: Mapping[str, PlanCard]
    tools: Mapping[str, Behaviour]
    script: list[Says]
    limits: Limits = LIMITS
    by_stage: dict[str, Says] = field(default_factory=dict)  # what the model always answers at a stage
    skill_ids: tuple[str, ...] = ()
    skills: tuple[PlanSkill, ...] = ()
    rules: tuple[Rule, ...] = ()
    entity_fields: Mapping[str, str] = field(default_factory=dict)
    injected: tuple[str, ...] = ()  # skills that earlier turns have injected
    loaded_skills: tuple[str, ...] = ()  # those of them that the conversation has loaded
    metadata: Args = field(default_factory=dict)
    working: Args = field(default_factory=dict)
    stage_tools: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    model: str = "openai/small"  # of its agent
    on_length: OnLength = OnLength.CONTINUE
    reviewers: tuple[str, ...] = ()  # the people whom its agent names
    said: str = "please"  # the user's message
    toolsets: dict[str, bool] = field(default_factory=dict)  # what its conversation has loaded
    user_name: str = "Ann"
    context: FakeContext | None = None  # of a turn that puts a context together
    facts: tuple[FactScope, ...] = ()  # whose facts its agent may use
    known_facts: dict[FactScope, list[Fact]] = field(default_factory=dict)
    facts_are_dead: bool = False
    fact_asks: list[FactsRequest] = field(default_factory=list)
    rows: dict[str, Row] = field(default_factory=dict)
    replies: dict[str, ModelReply] = field(default_factory=dict)
    book: dict[str, Record] = field(default_factory=dict)
    rounds: list[MessageRef] = field(default_factory=list)
    asks: list[ModelCallRequest] = field(default_factory=list)
    refuses: dict[str, Args] = field(default_factory=dict)  # arguments that a tool's own types refuse, by its name
    checked: list[str] = field(default_factory=list)  # the calls that were checked for that
    ran: list[tuple[str, Args]] = field(default_factory=list)  # (call id, arguments) of every dispatch
    called: list[str] = field(default_factory=list)  # the calls of the tools port, in order
    made: list[MessageRef] = field(default_factory=list)  # every stored message, in order
    wake_pending: bool = False  # a decision was made since the records were last read
    stopped: bool = False
    is_long: bool = False  # a run of it is renewed wherever it can be
    load_problem: Problem | None = None
    reading: Callable[[Verdicts], Awaitable[Verdicts]] | None = None  # spoils what a read of verdicts answers

    def message(
        self,
        role: Role,
        text: str,
        call_id: str = "",
        calls: tuple[CallRef, ...] = (),
        extends: MessageRef | None = None,
    ) -> MessageRef:
        message_id = extends.id if extends else f"message-{len(self.made) + 1}"
        ref = MessageRef(id=message_id, role=role, text=preview(text), call_id=call_id, calls=calls)
        if extends:
            self.made[self.made.index(extends)] = ref
        else:
            self.made.append(ref)
        return ref

    def unfold(self, messages: Sequence[MessageRef]) -> list[MessageRef]:
        """The messages as the store has them, with those of the rounds that a reference stands for."""
        stored = {each.id: each for each in self.made}
        found = []
        for message in messages:
            if message.rounds:
                found += sorted((each for each in self.made if is_in(_place(each)[0], message.rounds)), key=_place)
            else:
                found.append(stored.get(message.id, message))
        return found

    def decide(self, call_id: str, state: VerdictState, comment: str = "", args: Args | None = None) -> None:
        """Decide on the approval of a call; a second decision changes nothing."""
        record = self.book[approval_id(TURN_ID, call_id)]
        if record.state is VerdictState.PENDING:
            record.state, record.comment, record.args = state, comment, args
            self.wake_pending = True
            record.decided_by = "reviewer" if state in BY_PEOPLE else ""
            if record.kind is RequestKind.CHECKPOINT and args is not None:
                self._plan_again(record, args)

    def _plan_again(self, record: Record, args: Args) -> None:
        done = self.rows[reviewed_call(record.call_id) or ""]
        self.rows[record.call_id] = Row(record.call_id, done.tool, args, done.effect, True)
        call = CallRef(call_id=record.call_id, tool=done.tool, digest=digest_of(args))
        record.round = self.message(Role.ASSISTANT, "", calls=(call,))

    def settle(self, call_id: str, happened: bool, comment: str = "I looked") -> None:
        row = self.rows[call_id]
        assert row.state is CallState.OUTCOME_UNKNOWN
        row.comment, self.wake_pending = comment, True
        state = CallState.DONE if happened else CallState.FAILED
        status = "happened" if happened else "did_not_happen"
        self.close(row, state, {"status": status, "settled_by": "reviewer", "comment": comment})

    def close(
        self,
        row: Row,
        state: CallState,
        output: JsonValue,
        patch: Args | None = None,
        facts: Args | None = None,
        *,
        whole: bool = False,
    ) -> ToolOutcome:
        message = self.message(Role.TOOL, canonical_json(output), row.call_id)
        row.state = state
        row.outcome = ToolOutcome(
            call_id=row.call_id, state=state, message=message, patch=patch or {}, facts=facts or {},
            output=output if whole else None,
        )  # fmt: skip
        return row.outcome

    def perform(self, row: Row, approval: Record | None, ask: ToolCallRequest) -> ToolOutcome:
        """Do an allowed call and record it. Its approval reads as approved from here on: the ledger answers for it."""
        edited = approval.args if approval is not None else None
        args = row.args if edited is None else edited
        if approval is not None:
            approval.state = VerdictState.APPROVED
        self.ran.append((row.call_id, args))
        try:
            answer = self.tools[row.tool]({**args, "state": ask.state} if ask.state else args)
        except Refused as error:
            told: Args = {"status": "error", "message": str(error)}
            return self.close(row, CallState.FAILED, told, whole=ask.args is not None)
        except Ambiguous:
            row.state = CallState.OUTCOME_UNKNOWN
            return ToolOutcome(call_id=row.call_id, state=row.state)
        output, patch = answer if isinstance(answer, tuple) else (answer, {})
        facts = plain_facts(output, ask.paths)
        if edited is not None:
            output = with_changed_arguments(edited, output)
        updates = {name: patch[name] for name in self.cards[row.tool].wants_state if name in patch}
        return self.close(row, CallState.DONE, output, updates, facts, whole=ask.args is not None)

    def deny(self, row: Row, approval: Record | None) -> ToolOutcome:
        why = f"the approval is {approval.state.value}" if approval else "the call needs an approval and has none"
        body: Args = {"status": "denied", "message": why}
        if approval is not None and approval.comment:
            body["reason"] = approval.comment
        return self.close(row, CallState.DENIED, body)

    def load_call(self, step: int, index: int, args: Mapping[str, JsonValue]) -> CallRef:
        """A call that loads a toolset, answered as it is planned; the conversation keeps what it loads."""
        loading = load(args, [*self.cards.values()], self.toolsets)
        self.toolsets = loading.loaded
        call_id = tool_call_id(step, index)
        row = self.rows[call_id] = Row(call_id, LOAD_TOOLSET, dict(args), EffectClass.READ, False)
        told = self.close(row, CallState.DONE if loading.done else CallState.FAILED, loading.result)
        ref = CallRef(call_id=call_id, tool=LOAD_TOOLSET, digest=digest_of(dict(args)))
        return _settled(ref, told).model_copy(update={"args": dict(args) if loading.done else {}})

    def plan_call(
        self, step: int, index: int, tool: str, args: Mapping[str, JsonValue], offered: Sequence[str]
    ) -> CallRef:
        """A call of the model; one that cannot run is settled immediately."""
        if tool == LOAD_TOOLSET and tool in offered:
            return self.load_call(step, index, args)
        if tool == LOAD_SKILL and tool in offered:
            ref = CallRef(call_id=tool_call_id(step, index), tool=tool, digest=digest_of(dict(args)))
            row = self.rows[ref.call_id] = Row(ref.call_id, tool, dict(args), EffectClass.READ, False)
            done = args.get("skill") in self.skill_ids
            told = self.close(row, CallState.DONE if done else CallState.FAILED, {"status": "loaded"})
            return _settled(ref, told).model_copy(update={"args": dict(args) if done else {}})
        card = self.cards.get(tool) if tool in offered else None
        call_id = tool_call_id(step, index)
        effect = card.effect if card else EffectClass.OPAQUE
        row = self.rows[call_id] = Row(call_id, tool, dict(args), effect, card is None or card.needs_approval)
        ref = CallRef(call_id=call_id, tool=tool, digest=digest_of(dict(args)))
        if card is not None:
            return ref
        told = self.close(row, CallState.FAILED, {"status": "error", "message": f"there is no tool {tool}"})
        return _settled(ref, told)


def _settled(ref: CallRef, told: ToolOutcome) -> CallRef:
    return ref.model_copy(update={"settled": True, "answer_id": told.message.id if told.message else ""})
