"""Values that the steps of the hand-written stacks exchange: frozen pydantic models, as in Perdure."""

from pydantic import JsonValue

from perdure.contracts.turns import TurnAddress
from perdure.contracts.values import Tolerant


class Turn(Tolerant):
    """The input of both workflows."""

    address: TurnAddress
    agent_version: str


class Loaded(Tolerant):
    """Memory and skills, in the form for the model."""

    base: str
    memory: str


class RequestedCall(Tolerant):
    """A tool call that the model requested; its arguments are in Postgres."""

    call_id: str
    tool: str


class ModelResult(Tolerant):
    """The result of a model call."""

    preview: str
    """The start of its text."""
    tokens: int
    """Tokens of the turn so far."""
    calls: tuple[RequestedCall, ...] = ()


class ModelContext(Tolerant):
    """The input of a model call besides the turn."""

    loaded: Loaded
    tokens: int = 0


class ModelStep(Tolerant):
    """The input of the merged workflow's model activity."""

    turn: Turn
    step: int
    context: ModelContext


class ToolStep(Tolerant):
    """The input of the merged workflow's tool activity."""

    turn: Turn
    call: RequestedCall
    said: ModelResult


class FinishStep(Tolerant):
    """The input of the merged workflow's last activity."""

    turn: Turn
    said: ModelResult


class Memory(Tolerant):
    """The result of the step-by-step workflow's memory activity; its bodies are part of the workflow."""

    user_text: str
    user_name: str
    user_role: str
    memory: str


class Skills(Tolerant):
    """The result of its skills activity."""

    persona: str
    listed: str


class WholeCall(Tolerant):
    """A tool call with its arguments."""

    call_id: str
    key: str
    tool: str
    digest: str
    provider_id: str
    args: dict[str, JsonValue]


class WholeMessage(Tolerant):
    """A message with its body."""

    id: str
    role: str
    content: str
    calls: tuple[WholeCall, ...] = ()
    call_id: str = ""
    tokens: int = 0


class ModelInput(Tolerant):
    """The input of its model activity."""

    turn: Turn
    step: int
    base: str
    memory: str
    messages: tuple[WholeMessage, ...]
    tokens: int


class Answer(Tolerant):
    """The result of its model activity."""

    message: WholeMessage
    tokens: int
    """Tokens of this call, input and output."""


class ToolInput(Tolerant):
    """The input of its tool activity."""

    turn: Turn
    call: WholeCall
    first: bool
    round: WholeMessage


class TranscriptInput(Tolerant):
    """The input of its last activity."""

    turn: Turn
    messages: tuple[WholeMessage, ...]
