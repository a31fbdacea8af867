"""The seven activities of the step-by-step workflow. Bodies are inputs and results; the last one writes the
messages."""

from temporalio import activity

from bench.baselines import records, trace
from bench.baselines.speech import call_model
from bench.baselines.values import (
    Answer,
    Memory,
    ModelInput,
    Skills,
    ToolInput,
    TranscriptInput,
    Turn,
    WholeCall,
    WholeMessage,
)
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
            turn_input = await records.read_turn_input(tx, turn.address.turn_id)
            await write(tx, turn.address, trace.loaded([*turn_input.working]))
        return Memory(
            user_text=turn_input.user_text,
            user_name=turn_input.user_name,
            user_role=turn_input.user_role,
            memory=memory_message(turn_input.working),
        )

    @activity.defn(name="bench.skills")
    async def skills(self, turn: Turn) -> Skills:
        """Reads the agent's skills; a version never changes, so it is read from Postgres once per process."""
        skills = self._skills.get(turn.agent_version)
        if skills is None:
            async with self._work.db.transaction(turn.address.tenant_id) as tx:
                agent = await self._work.agent_cache.read_pinned(tx, self._work.tools.agent_id, turn.agent_version)
            manifest = skill_manifest(agent.definition.skills)
            skills = self._skills[turn.agent_version] = Skills(persona=agent.definition.persona, listed=manifest)
        return skills

    @activity.defn(name="bench.model")
    async def model(self, given: ModelInput) -> Answer:
        """Makes one model call with all its messages in the input."""
        address, work = given.turn.address, self._work
        async with work.db.transaction(address.tenant_id) as tx:
            agent = await work.agent_cache.read_pinned(tx, work.tools.agent_id, given.turn.agent_version)
            if given.step == 1:
                await records.mark_running(tx, address.turn_id)
            await write(tx, address, trace.before_model(given.step, model_call_id(given.step), given.tokens))
        work.live.wake(address.conversation_id)
        prompt = [_as_prompt(message, address.turn_id) for message in given.messages]
        messages = prompts.wire_messages(given.base, given.memory, prompt)
        reply = await call_model(work.provider, work.live, address, agent, given.step, messages)
        names = [plan.row.tool for plan in reply.planned]
        events = trace.after_model(reply.call_id, reply.text, reply.usage, names, reply.first_token_seconds)
        async with work.db.transaction(address.tenant_id) as tx:
            await records.record_answer(tx, address.turn_id, reply.usage, [plan.row for plan in reply.planned])
            await write(tx, address, events)
        work.live.wake(address.conversation_id)
        calls = tuple(
            WholeCall(
                call_id=plan.row.call_id,
                key=plan.row.key,
                tool=plan.row.tool,
                digest=plan.row.digest,
                provider_id=plan.row.provider_call_id,
                args=plan.row.args,
            )
            for plan in reply.planned
        )
        message = WholeMessage(
            id=new_id(),
            role=Role.ASSISTANT.value,
            content=reply.text,
            calls=calls,
            tokens=reply.usage.output_tokens,
        )
        return Answer(message=message, tokens=reply.usage.tokens)

    @activity.defn(name="bench.tool")
    async def tool(self, step_input: ToolInput) -> WholeMessage:
        """Makes one tool call with its arguments in the input."""
        address, work, call = step_input.turn.address, self._work, step_input.call
        pairs = [(called.call_id, called.tool) for called in step_input.round.calls]
        text = preview(step_input.round.content)
        async with work.db.transaction(address.tenant_id) as tx:
            await write(
                tx, address, trace.before_tool(call.call_id, call.tool, first=step_input.first, said=text, calls=pairs)
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
            await records.record_tool_result(tx, address.turn_id, call.call_id, {"message_id": message.id})
            await write(tx, address, trace.after_tool(call.call_id, call.tool, preview(content), message.id))
        work.live.wake(address.conversation_id)
        return message

    @activity.defn(name="bench.transcript")
    async def transcript(self, step_input: TranscriptInput) -> None:
        """Writes the messages and ends the turn."""
        answer = step_input.messages[-1].content
        async with self._work.db.transaction(step_input.turn.address.tenant_id) as tx:
            await records.finish_turn(
                tx, step_input.turn.address, answer, preview(answer), [_new(message) for message in step_input.messages]
            )
        self._work.live.wake(step_input.turn.address.conversation_id)


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
