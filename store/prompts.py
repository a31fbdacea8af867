"""The messages of a model call with their bodies: the past, windowed, and this turn's own in the graph's order."""

from collections.abc import Mapping
from dataclasses import replace

from contracts.ids import effect_key
from contracts.messages import MessageRef, WindowPolicy
from contracts.model import ModelCall
from policy.prompt import Said
from policy.text import unabridged
from policy.window import Windowed, halved, keep
from store.database import Connection
from store.messages import StoredMessage, bodies
from store.verdicts import words_of


async def said_messages(
    tx: Connection,
    call: ModelCall,
    through_seq: int,
    window: WindowPolicy,
    skills: Mapping[str, str],
    *,
    compacted: bool = False,
) -> list[Said]:
    """What is said to the model, oldest first, within the agent's window; `skills` are texts by skill id.

    Where an object is asked for, the window is for the past alone (S4-52): what the step itself says all goes out.
    With `compacted` half of what that would be: an attempt before was too long for the model.
    """
    ids = [ref.id for ref in call.ask.messages if ref.id]
    quoted = [request_id for ref in call.ask.messages for request_id in ref.quotes]
    words = await words_of(tx, call.address.turn_id, quoted) if quoted else {}
    past, own = await bodies(tx, call.address.conversation_id, through_seq, window, ids)
    everything: list[StoredMessage | MessageRef] = [*past]
    everything += [own.get(ref.id, ref) if ref.id else ref for ref in call.ask.messages]
    windowed = [_windowed(index, message) for index, message in enumerate(everything)]
    if call.ask.output is not None:
        windowed[len(past) :] = [replace(message, tokens=0) for message in windowed[len(past) :]]
    kept = keep(windowed, halved(windowed, window) if compacted else window)
    return [_said(everything[index], skills, words) for index in kept]


def _windowed(index: int, message: StoredMessage | MessageRef) -> Windowed:
    if isinstance(message, StoredMessage):
        return Windowed(index, message.role, message.tokens, _keys(message), _answers(message))
    return Windowed(index, message.role, message.tokens, (), message.call_id)


def _said(message: StoredMessage | MessageRef, skills: Mapping[str, str], words: Mapping[str, str]) -> Said:
    if isinstance(message, StoredMessage):
        return Said(message.role, message.content, message.calls, _answers(message))
    text = unabridged(message.text, [words[each] for each in message.quotes if each in words])
    return Said(message.role, skills.get(message.skill_id, text))


def _keys(message: StoredMessage) -> tuple[str, ...]:
    return tuple(str(each["key"]) for each in message.calls)


def _answers(message: StoredMessage) -> str:
    return effect_key(message.turn_id, message.call_id) if message.call_id else ""
