"""The seven activities of the step-by-step workflow. Bodies are inputs and results; the last one writes the
messages."""

from temporalio import activity

from bench.baselines import records, trace
from bench.baselines.speech import call_model
from bench.baselines.values import Answer, Ask, Memory, Skills, ToolAsk, Transcript, Turn, WholeCall, WholeMessage
from bench.baselines.work import Work
from perdure.contracts.ids import effect_key, model_call_id
from perdure.contracts.messages import Role
from perdure.contracts.values import canonical_json
from perdure.core.agents import prompts
from perdure.core.agents.prompts import memory_message, skill_manifest
from perdure.core.text import estimated_tokens, preview
from perdure.store.database import new_id
from perdure.store.events.event_log import NewMessage, write


class StepActivities:
    """An activity for each step."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._skills: dict[str, Skills] = {}

    @activity.defn(name="bench.memory")
    async def memory(self, turn: Turn) -> Memory:
        """Reads the message, the user and the working memory."""
        async with self._work.db.transaction(turn.address.tenant_id) as tx:
            found = await records.read_turn_input(tx, turn.address.turn_id)
            await write(tx, turn.address, trace.loaded([*found.working]))
        return Memory(
            user_text=found.user_text,
            user_name=found.user_name,
            user_role=found.user_role,
            memory=memory_message(found.working),
        )

    @activity.defn(name="bench.skills")
    async def skills(self, turn: Turn) -> Skills:
        """Reads the agent's skills; a version never changes, so it is read from Postgres once per process."""
        found = self._skills.get(turn.agent_version)
        if found is None:
            async with self._work.db.transaction(turn.address.tenant_id) as tx:
                agent = await self._work.agent_cache.read_pinned(tx, self._work.tools.agent_id, turn.agent_version)
            listed = skill_manifest(agent.definition.skills)
            found = self._skills[turn.agent_version] = Skills(persona=agent.definition.persona, listed=listed)
        return found

    @activity.defn(name="bench.model")
    async def model(self, ask: Ask) -> Answer:
        """Makes one model call with all its messages in the input."""
        address, work = ask.turn.address, self._work
        async with work.db.transaction(address.tenant_id) as tx:
            agent = await work.agent_cache.read_pinned(tx, work.tools.agent_id, ask.turn.agent_version)
            if ask.step == 1:
                await records.mark_running(tx, address.turn_id)
            await write(tx, address, trace.before_model(ask.step, model_call_id(ask.step), ask.tokens))
        await work.live.wake(address.conversation_id)
        said = [_as_prompt(message, address.turn_id) for message in ask.messages]
        spoken = await call_model(
            work.provider, work.live, address, agent, ask.step, prompts.wire_messages(ask.base, ask.memory, said)
        )
        names = [each.row.tool for each in spoken.planned]
        events = trace.after_model(spoken.call_id, spoken.text, spoken.usage, names, spoken.first_token_seconds)
        async with work.db.transaction(address.tenant_id) as tx:
            await records.answered(tx, address.turn_id, spoken.usage, [each.row for each in spoken.planned])
            await write(tx, address, events)
        await work.live.wake(address.conversation_id)
        calls = tuple(
            WholeCall(
                call_id=each.row.call_id,
                key=each.row.key,
                tool=each.row.tool,
                digest=each.row.digest,
                provider_id=each.row.provider_call_id,
                args=each.row.args,
            )
            for each in spoken.planned
        )
        message = WholeMessage(
            id=new_id(),
            role=Role.ASSISTANT.value,
            content=spoken.text,
            calls=calls,
            tokens=spoken.usage.output_tokens,
        )
        return Answer(message=message, tokens=spoken.usage.tokens)

    @activity.defn(name="bench.tool")
    async def tool(self, ask: ToolAsk) -> WholeMessage:
        """Makes one tool call with its arguments in the input."""
        address, work, call = ask.turn.address, self._work, ask.call
        pairs = [(each.call_id, each.tool) for each in ask.round.calls]
        said = preview(ask.round.content)
        async with work.db.transaction(address.tenant_id) as tx:
            await write(
                tx, address, trace.before_tool(call.call_id, call.tool, first=ask.first, said=said, calls=pairs)
            )
        content = await work.tools.run(call.tool, call.call_id, address, call.args)
        message = WholeMessage(
            id=new_id(),
            role=Role.TOOL.value,
            content=content,
            call_id=call.call_id,
            tokens=estimated_tokens(content),
        )
        async with work.db.transaction(address.tenant_id) as tx:
            await records.tool_done(tx, address.turn_id, call.call_id, {"message_id": message.id})
            await write(tx, address, trace.after_tool(call.call_id, call.tool, preview(content), message.id))
        await work.live.wake(address.conversation_id)
        return message

    @activity.defn(name="bench.transcript")
    async def transcript(self, ask: Transcript) -> None:
        """Writes the messages and ends the turn."""
        answer = ask.messages[-1].content
        async with self._work.db.transaction(ask.turn.address.tenant_id) as tx:
            await records.finish_turn(
                tx, ask.turn.address, answer, preview(answer), [_new(each) for each in ask.messages]
            )
        await self._work.live.wake(ask.turn.address.conversation_id)


def _as_prompt(message: WholeMessage, turn_id: str) -> prompts.PromptMessage:
    calls = [{"key": c.key, "tool": c.tool, "arguments": canonical_json(c.args)} for c in message.calls]
    answers = effect_key(turn_id, message.call_id) if message.call_id else ""
    return prompts.PromptMessage(Role(message.role), message.content, calls, answers)


def _new(message: WholeMessage) -> NewMessage:
    return NewMessage(
        message.id,
        Role(message.role),
        message.content,
        calls=[
            {
                "call_id": call.call_id,
                "key": call.key,
                "tool": call.tool,
                "arguments": canonical_json(call.args),
                "digest": call.digest,
                "provider_id": call.provider_id,
                "settled": False,
            }
            for call in message.calls
        ],
        call_id=message.call_id or None,
        tokens=message.tokens,
    )
