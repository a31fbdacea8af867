"""The ports of a turn in memory: a model with a script, tools with a ledger, users with approvals.
They keep the promises of perdure/graph/ports.py; the suites of tests/ports run against them and the real ports."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from perdure.activities.memory import MIRRORED_FIELDS, READ_METADATA
from perdure.contracts import ids
from perdure.contracts.activities import Checked, TurnContext, Verdicts
from perdure.contracts.agents import TurnPlan
from perdure.contracts.approvals import GatedCall, Question, RequestKind, RequestRef, Verdict, VerdictState
from perdure.contracts.calls import CallState, ModelCallRequest, ModelReply, PlannedAsk, ToolCallRequest, ToolOutcome
from perdure.contracts.context_assembly import AssembleAsk, Assembled
from perdure.contracts.errors import Problem
from perdure.contracts.memory import CLIENT_TABLE, MAX_FACTS, FactsAnswer, FactScope, FactsRequest, FactStatus
from perdure.contracts.messages import MessageRef, Role
from perdure.core.agents.skill_markers import selected_skills, without_markers
from perdure.core.approvals.gates import effect_request, startable_calls
from perdure.core.calls.arguments import extract_groups, read_object
from perdure.core.calls.endings import Ending, ending_of, problem_of_cut
from perdure.core.calls.ledger import STOPPED
from perdure.core.text import preview
from perdure.graph.ports import Ports
from perdure.workflows.turn_segment import Steps
from tests.doubles.fake_turn import NOW, TURN_ID, Args, FakeTurn, Record, Says


@dataclass(slots=True)
class FakeRun:
    """One run over a turn: the six ports, and what it asks people for when it ends in a pause."""

    turn: FakeTurn
    steps: Steps = field(default_factory=Steps)
    events: list[tuple[str, Args]] = field(default_factory=list)
    asked: tuple[tuple[GatedCall, ...], tuple[GatedCall, ...]] | None = None
    questions: tuple[Question, ...] = ()
    snapshot: Args = field(default_factory=dict)
    continues: bool = False
    """The turn does not wait for its requests."""
    stopped: bool = False
    """This run has received a stop: it calls nothing, the ledger included."""
    problem: Problem | None = None
    """The problem of each port whose work always fails."""
    loaded: TurnContext | None = None

    def as_ports(self) -> Ports:
        return self._counted(self.steps)

    @property
    def step(self) -> int:
        return self.steps.last

    def _counted(self, steps: Steps) -> Ports:
        def apart(branches: int) -> list[Ports]:
            return [self._counted(own) for own in steps.for_branches(branches)]

        own = (FakeModel(self, steps), FakeTools(self, steps), FakeMemory(self), FakePeople(self))
        return Ports(*own, self, self, apart, lambda entry, many: self.turn.is_long or many)

    def emit(self, kind: str, data: Args | None = None, call_id: str | None = None) -> None:
        self.events.append((kind, data or {}))

    def now(self) -> datetime:
        return NOW

    def trace(self) -> list[str]:
        return [str(data["node"]) for kind, data in self.events if kind == "node_end"]

    def open(self) -> None:
        for call in self.asked[0] if self.asked else ():
            record = Record(call.call_id, kind=call.kind, tool=call.tool, snapshot=self.snapshot)
            self.turn.book.setdefault(ids.approval_id(TURN_ID, call.call_id), record)
        for question in self.questions:
            asked = Record(question.call_id, kind=question.kind, snapshot=question.asked)
            self.turn.book.setdefault(ids.approval_id(TURN_ID, question.call_id), asked)


@dataclass(frozen=True, slots=True)
class FakeModel:
    run: FakeRun
    steps: Steps

    async def complete(self, ask: ModelCallRequest) -> ModelReply:
        """Each step is paid once: a repeated step returns its stored reply."""
        turn = self.run.turn
        if self.run.stopped:
            return ModelReply(problem=STOPPED)
        step = self.steps.next_number()
        if self.run.problem is not None:
            return ModelReply(problem=self.run.problem)
        call_id = ids.model_call_id(step)
        if call_id not in turn.replies:
            if turn.stopped:
                return ModelReply(problem=STOPPED)
            turn.asks.append(ask.model_copy(update={"messages": tuple(turn.unfold(ask.messages))}))
            asked = turn.context.verdict(ask) if turn.context is not None and ask.output is not None else None
            turn.replies[call_id] = asked or self._answer(turn.by_stage.get(ask.stage) or turn.script.pop(0), ask, step)
        return turn.replies[call_id]

    def _answer(self, says: Says, ask: ModelCallRequest, step: int) -> ModelReply:
        turn = self.run.turn
        if says.problem is not None:
            return ModelReply(problem=says.problem, usage=says.usage)
        if ask.output is not None:
            read = read_object(says.text, ask.output.fits)
            value = read.args if read.fault is None else None
            return ModelReply(value=value, fault=read.fault or "", usage=says.usage)
        before = next((each for each in turn.made if each.id and each.id == ask.continues), None)
        said, selected = says.text, extract_groups(ask.extract_pattern, says.text)
        if ask.skill_marks and turn.skill_ids:
            said, selected = without_markers(said, turn.skill_ids), selected_skills(said, turn.skill_ids)
        text = (before.text if before else "") + said
        ending = ending_of(says.ends, turn.on_length, may_continue=ask.may_continue, has_text=bool(text))
        asked = () if says.ends == "length" else says.calls
        calls = tuple(turn.plan_call(step, at, tool, args, ask.tools) for at, (tool, args) in enumerate(asked))
        reply = ModelReply(
            usage=says.usage, turn_used=says.turn_used, finish_reason="tool_calls" if calls else says.ends,
            goes_on=ending is Ending.CONTINUED, extracted=selected,
            problem=problem_of_cut(says.ends) if ending is Ending.FAILED else None,
        )  # fmt: skip
        if not text and (ending is not Ending.WHOLE or (says.text and not calls)):
            return reply
        message = turn.message(Role.ASSISTANT, text, calls=calls, extends=before)
        turn.rounds += [message] if calls else []
        return reply.model_copy(update={"message": message})


@dataclass(frozen=True, slots=True)
class FakeTools:
    """The ledger's rules without its crashes."""

    of: FakeRun
    steps: Steps

    async def run(self, asks: Sequence[ToolCallRequest], waiting: Sequence[RequestRef] = ()) -> list[ToolOutcome]:
        """Runs each call by its record. After a tool that signals (`FakeTurn.decide`), reads the records again."""
        if self.of.stopped:
            return [_not_run(ask, STOPPED) for ask in asks]
        held, ended = {request.call_id: request for request in waiting}, dict[str, ToolOutcome]()
        ready = [ask.call_id for ask in asks if ask.call_id not in held]
        while ready:
            for ask in asks:
                if ask.call_id in ready:
                    held.pop(ask.call_id, None)
                    self.of.turn.called.append(ask.call_id)
                    outcome = ended[ask.call_id] = self._one(ask)
                    if outcome.state is CallState.OUTCOME_UNKNOWN:
                        held[ask.call_id] = effect_request(TURN_ID, ask.call_id, ask.tool)
            ready = await self._freed([ask.call_id for ask in asks], held, ended)
        return [ended.get(ask.call_id) or _not_run(ask, None) for ask in asks]

    async def check(self, call_ids: Sequence[str]) -> Checked:
        """A call is refused if its tool's own types do, which the turn's `refuses` names by tool."""
        if self.of.stopped or self.of.turn.stopped:
            return Checked(problem=STOPPED)
        rows = [self.of.turn.rows[call_id] for call_id in call_ids]
        self.of.turn.checked += call_ids
        refused = [row for row in rows if row.args == self.of.turn.refuses.get(row.tool)]
        for row in refused:
            if row.outcome is None:
                self.of.turn.close(row, CallState.FAILED, {"status": "error", "message": "refused by its types"})
        return Checked(answers=tuple(row.outcome.message for row in refused if row.outcome and row.outcome.message))

    async def make(self, asks: Sequence[PlannedAsk]) -> list[ToolOutcome]:
        """The graph's own calls, in the ledger as a model's are."""
        step = self.steps.next_number()
        made = []
        for index, ask in enumerate(asks):
            call_id = ids.tool_call_id(step, index)
            card = self.of.turn.cards.get(ask.tool)
            if call_id not in self.of.turn.rows and card is not None and not card.needs_approval:
                self.of.turn.plan_call(step, index, ask.tool, ask.args, (ask.tool,))
            made.append(ToolCallRequest(call_id=call_id, tool=ask.tool, args=ask.args))
        return await self.run(made)

    async def assemble(self, asks: Sequence[AssembleAsk]) -> list[Assembled]:
        problem = STOPPED if self.of.stopped or self.of.turn.stopped else self.of.problem
        context = self.of.turn.context
        if problem is not None or context is None:
            return [Assembled(tool=ask.tool, problem=problem or STOPPED) for ask in asks]
        return [context.assemble(ask) for ask in asks]

    async def _freed(
        self, calls: Sequence[str], held: dict[str, RequestRef], ended: dict[str, ToolOutcome]
    ) -> list[str]:
        hopeless = self.of.stopped or any(outcome.problem for outcome in ended.values())
        if not held or hopeless or not self.of.turn.wake_pending:
            return []
        requests = [*held.values()]
        read = await FakePeople(self.of).verdicts(requests)
        if read.problem is not None:
            return []
        waiting = [call for call in calls if call in held]
        return [*startable_calls(waiting, requests, read.verdicts, begun=ended.keys() - held.keys())]

    def _one(self, ask: ToolCallRequest) -> ToolOutcome:
        turn = self.of.turn
        if self.of.stopped or self.of.problem is not None:
            return _not_run(ask, STOPPED if self.of.stopped else self.of.problem)
        row = turn.rows.get(ask.call_id)
        if row is None:
            return _not_run(ask, Problem(code="call_not_planned", message="no model asked for this call"))
        if row.outcome is not None:
            return row.outcome
        if row.state is CallState.OUTCOME_UNKNOWN:
            return ToolOutcome(call_id=row.call_id, state=row.state)
        if turn.stopped:
            return _not_run(ask, STOPPED)
        approval = turn.book.get(ids.approval_id(TURN_ID, row.call_id))
        if row.gated and approval is not None and approval.state is VerdictState.PENDING:
            return ToolOutcome(call_id=row.call_id, state=CallState.PLANNED)
        if row.gated and (approval is None or approval.state not in (VerdictState.APPROVED, VerdictState.EDITED)):
            return turn.deny(row, approval)
        return turn.perform(row, approval, ask)


def _ref(call_id: str, tool: str, kind: RequestKind) -> RequestRef:
    return RequestRef(request_id=ids.approval_id(TURN_ID, call_id), kind=kind, call_id=call_id, tool=tool)


def _not_run(ask: ToolCallRequest, problem: Problem | None) -> ToolOutcome:
    return ToolOutcome(call_id=ask.call_id, state=CallState.PLANNED, problem=problem)


@dataclass(frozen=True, slots=True)
class FakeMemory:
    """The data of a new run; an open gate is found here."""

    run: FakeRun

    async def load(self) -> TurnContext:
        """Read once a run, a failure too."""
        if self.run.loaded is None:
            self.run.loaded = self._load()
            for request in self.run.loaded.pending[:1]:
                self.run.steps.advance(ids.step_of(request.call_id))
        return self.run.loaded

    async def facts(self, ask: FactsRequest) -> FactsAnswer:
        """Facts of the turn's own store; `broken` and `off` answer as the activity does."""
        turn = self.run.turn
        turn.fact_asks.append(ask)
        if not ask.authorized or ask.scope not in turn.facts:
            return FactsAnswer(status=FactStatus.UNAUTHORIZED)
        if self.run.stopped or turn.stopped or self.run.problem is not None or turn.facts_are_dead:
            return FactsAnswer(status=ask.failed())
        known = turn.known_facts.setdefault(ask.scope, [])
        if ask.write:
            if ask.scope is FactScope.CONVERSATION:
                newer = {fact.type for fact in ask.facts}
                known[:] = sorted([f for f in known if f.type not in newer] + [*ask.facts], key=lambda f: f.type)
            else:
                had = {(fact.type, fact.content) for fact in known}
                known += [fact for fact in ask.facts if (fact.type, fact.content) not in had]
            return FactsAnswer(status=FactStatus.SUCCESS)
        empty = FactStatus.SUCCESS if ask.scope is FactScope.USER else FactStatus.NOT_FOUND
        return FactsAnswer(status=FactStatus.SUCCESS if known else empty, facts=tuple(known[:MAX_FACTS]))

    def _load(self) -> TurnContext:
        turn = self.run.turn
        problem = self.run.problem or turn.load_problem or (STOPPED if turn.stopped else None)
        if problem is not None:
            return TurnContext(problem=problem)
        checkpoints = self._checkpoints()
        gated_round, pending = (None, tuple(map(self._at, checkpoints))) if checkpoints else self._open_gate()
        return TurnContext(
            plan=TurnPlan(
                agent_id="desk", agent_version="v1", persona_key="agent", limits=turn.limits, model=turn.model,
                reviewers=turn.reviewers, cards=tuple(turn.cards.values()), skill_ids=turn.skill_ids,
                skills=turn.skills, loaded_skills=turn.loaded_skills, rules=turn.rules,
                entity_fields=dict(turn.entity_fields), toolsets=dict(turn.toolsets),
                stage_tools=dict(turn.stage_tools), words=dict(turn.words),
                assembly=turn.context.plan if turn.context else None, facts=turn.facts,
            ),
            context=turn.context.memory if turn.context else None,
            user_message=MessageRef(id="user-message", role=Role.USER, text=turn.said),
            user_name=turn.user_name,
            user_role="clerk",
            metadata={name: turn.metadata[name] for name in (*READ_METADATA, CLIENT_TABLE) if name in turn.metadata},
            working={
                name: turn.working[name] for name in (*MIRRORED_FIELDS, *turn.entity_fields) if name in turn.working
            },
            injected_fields=len(turn.working),
            pending=pending,
            pending_round=gated_round,
            restored=self._restored(pending),
            injected=turn.injected,
        )  # fmt: skip

    def _checkpoints(self) -> list[Record]:
        """The calls of the last step, unless the model was called again since."""
        turn = self.run.turn
        reached = max(map(ids.step_of, turn.replies), default=0)
        checkpoints = [record for record in turn.book.values() if record.kind is RequestKind.CHECKPOINT]
        return [record for record in checkpoints if ids.step_of(record.call_id) >= reached]

    def _at(self, record: Record) -> RequestRef:
        return _ref(record.call_id, record.tool, record.kind).model_copy(update={"expires_at": NOW + timedelta(days=7)})

    def _restored(self, pending: Sequence[RequestRef]) -> Args:
        kept = self.run.turn.book[pending[-1].request_id].snapshot if pending else {}
        return kept if "messages" in kept else {}

    def _open_gate(self) -> tuple[MessageRef | None, tuple[RequestRef, ...]]:
        """The newest gated round, while any call of it is not settled."""
        turn = self.run.turn
        for gated_round in reversed(turn.rounds):
            asked = [call for call in gated_round.calls if ids.approval_id(TURN_ID, call.call_id) in turn.book]
            if asked:
                unsettled = any(turn.rows[call.call_id].outcome is None for call in asked)
                if not unsettled:
                    return None, ()
                return gated_round, tuple(self._at(turn.book[ids.approval_id(TURN_ID, call.call_id)]) for call in asked)
        return None, ()


@dataclass(frozen=True, slots=True)
class FakePeople:
    """The book of approvals, and effects that a person must settle."""

    run: FakeRun

    def open_requests(
        self, gated: Sequence[GatedCall], unknown: Sequence[GatedCall], snapshot: Args, *, continues: bool = False
    ) -> list[RequestRef]:
        self.run.continues = continues
        own = {
            RequestKind.CHECKPOINT: ids.forced_checkpoint_id(self.run.step),
            RequestKind.LIMIT: ids.limit_id(self.run.step),
        }
        gated = [call if call.call_id else call.model_copy(update={"call_id": own[call.kind]}) for call in gated]
        self.run.asked, self.run.snapshot = (tuple(gated), tuple(unknown)), snapshot
        approvals = [_ref(call.call_id, call.tool, call.kind) for call in gated]
        return [*approvals, *(effect_request(TURN_ID, call.call_id, call.tool) for call in unknown)]

    def open_question(self, question: Question) -> RequestRef:
        """Kept until the run ends; named by the step."""
        call_id = question.call_id or ids.question_id(self.run.step)
        self.run.questions = (question.model_copy(update={"call_id": call_id}),)
        return _ref(call_id, "", question.kind)

    async def verdicts(self, requests: Sequence[RequestRef]) -> Verdicts:
        self.run.turn.wake_pending = False
        if self.run.problem is not None:
            return Verdicts(problem=self.run.problem)
        read = Verdicts(verdicts=tuple(self._verdict(request) for request in requests))
        return await self.run.turn.reading(read) if self.run.turn.reading else read

    def _verdict(self, request: RequestRef) -> Verdict:
        same = {"request_id": request.request_id, "call_id": request.call_id, "tool": request.tool}
        verdict = Verdict(**same, state=VerdictState.UNREADABLE)
        if request.kind is RequestKind.EFFECT:
            row = self.run.turn.rows.get(request.call_id)
            if row is None or request.request_id != ids.effect_key(TURN_ID, request.call_id):
                return verdict
            unknown = row.state is CallState.OUTCOME_UNKNOWN
            state = VerdictState.PENDING if unknown else VerdictState.SETTLED
            return verdict.model_copy(update={"state": state, "comment": row.comment})
        record = self.run.turn.book.get(request.request_id)
        if record is None:
            return verdict.model_copy(update={"no_record": True})
        if record.call_id != request.call_id or record.state is VerdictState.UNREADABLE:
            return verdict
        told = {
            "state": VerdictState.EDITED if record.round else record.state, "comment": preview(record.comment),
            "is_cut": preview(record.comment) != record.comment, "decided_by": record.decided_by,
            "round": record.round, "answer": record.args or {} if record.state is VerdictState.ANSWERED else {},
        }  # fmt: skip
        return verdict.model_copy(update=told)
