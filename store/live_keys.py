"""How the live side's keys and channels in Valkey are named; the braces keep a conversation's keys together in a
cluster."""

from policy.reader import CallKey

WOKEN_BY_EVENTS = "e"
"""What a wake-up says where durable events were committed; one for tokens says `t`."""


def channel(conversation_id: str) -> str:
    """The pub/sub channel of a conversation."""
    return f"perdure:wake:{conversation_id}"


def stream_and_epoch(tenant_id: str, conversation_id: str) -> tuple[str, str]:
    """A conversation's stream, and the key that names the stream's epoch."""
    stem = f"perdure:{tenant_id}:{{{conversation_id}}}"
    return f"{stem}:tokens", f"{stem}:epoch"


def fence_of(stream: str, key: CallKey) -> str:
    """The fence of a model call."""
    return f"{stream}:{key[0]}:{key[1]}"


def stop_of(stream: str, turn_id: str) -> str:
    """What says that a turn is to stop speaking."""
    return f"{stream}:{turn_id}:stop"
