"""One try of a tool. Of a target outside: what came of it, in the words of policy/ledger.py; of a local one: its
result, or why its transaction goes back."""

import asyncio
import traceback
from dataclasses import dataclass

import structlog

from activities.boundary import store_error
from activities.claiming import Held
from activities.edge import stop_asked
from activities.stops import Stops
from activities.toolbox.mcp import ServerLost
from contracts.agents import ToolCard
from contracts.errors import PerdureError
from egress import AnswerWithheld, EgressRefused
from perdure.outcomes import result_of
from perdure.targets import WITHHELD_ADVICE, Meaning, meaning_of_withheld
from perdure.tools import ToolContext, ToolRefused, ToolResult, ToolUnavailable
from policy.ledger import Acted

NOTHING = ToolResult(None)
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Try:
    """How a try ended, as its caller saw it."""

    acted: Acted
    told: str = ""
    """For the model, where the call did not return; may quote the target, so it goes into no history."""
    result: ToolResult = NOTHING
    retry_after_seconds: float | None = None
    timed_out: bool = False
    hopeless: bool = False
    """Another try would end in the same way."""
    stopped: bool = False
    """The turn was stopped while it was under way."""


MISTAKES: tuple[type[Exception], ...] = (
    TypeError,
    AttributeError,
    NameError,
    ImportError,
    NotImplementedError,
    AssertionError,
    ArithmeticError,
    RecursionError,
)
"""What only the tool's own code raises, so that trying again changes nothing. KeyError and ValueError are not here: an
answer of the target's that does not read may read the next time."""


STOPPED = Try(Acted.AMBIGUOUS, "the turn was stopped while the call was under way", stopped=True)


async def tried(held: Held, context: ToolContext, stops: Stops) -> Try:
    """Run the tool once, within its time; a stop of its turn breaks it off.

    Raises: CancelledError where this worker drains; the ledger decides what the next attempt may do.
    """
    async with stops.breaking(context.turn_id):
        return await _tried(held, context)
    return STOPPED


async def _tried(held: Held, context: ToolContext) -> Try:
    """Run the tool once, within its time.

    Raises: CancelledError where this worker drains; the ledger decides what the next attempt may do.
    """
    try:
        result = await asyncio.wait_for(held.tool.run(held.args, context), held.card.timeout_seconds)
    except ToolRefused as error:
        return Try(Acted.REFUSED, error.message)
    except ToolUnavailable as error:
        return Try(Acted.NOT_SENT, error.message, retry_after_seconds=error.retry_after_seconds)
    except AnswerWithheld as error:
        return _withheld(held.card, error)
    except EgressRefused as error:  # of a tool that sends past `context.send`, and may have sent something before
        return Try(Acted.AMBIGUOUS, str(error), hopeless=True)
    except asyncio.CancelledError:
        if not stop_asked():
            raise
        return STOPPED
    except TimeoutError:
        return Try(Acted.AMBIGUOUS, f"no answer within {held.card.timeout_seconds:g} s", timed_out=True)
    except Exception as error:
        _log.warning("tool_call_broke_off", tool=held.card.name, error=type(error).__name__)
        told = str(error) if isinstance(error, ServerLost) else f"the call broke off ({type(error).__name__})"
        return Try(Acted.AMBIGUOUS, told, hopeless=isinstance(error, MISTAKES))
    return Try(Acted.RETURNED, result=result)


def _withheld(card: ToolCard, error: AnswerWithheld) -> Try:
    """A success whose body was not read, by the table of perdure/targets.py."""
    meaning, told = meaning_of_withheld(card.effect, error.method), f"{error.code}: {error}"
    if meaning is Meaning.REFUSED:
        return Try(Acted.REFUSED, f"{told}; {WITHHELD_ADVICE}")
    if meaning is Meaning.AMBIGUOUS:
        return Try(Acted.AMBIGUOUS, told)
    note = f"the target accepted the {error.method} request, so it was carried out; {error} and was not read"
    _log.warning("tool_answer_withheld", tool=card.name, code=error.code, limit=error.limit)
    return Try(Acted.RETURNED, result=result_of({"status": error.code, "message": note, "limit": error.limit}))


class Undone(Exception):
    """A local tool failed. Raised through its transaction, which goes back; `told` is for the model."""

    def __init__(self, told: str) -> None:
        super().__init__(told)
        self.told = told


async def done_locally(held: Held, context: ToolContext) -> ToolResult:
    """Run a local tool once, within its time, in the transaction that it is given.

    Raises: Undone where the tool failed. What says that Postgres is away or in the way passes as it is: that is no
    answer of the tool's, and another attempt may well have one.
    """
    try:
        async with asyncio.timeout(held.card.timeout_seconds):
            return await held.tool.run(held.args, context)
    except (ToolRefused, ToolUnavailable) as error:
        raise Undone(error.message) from None
    except (AnswerWithheld, EgressRefused) as error:
        raise Undone(str(error)) from None
    except PerdureError:
        raise
    except Exception as error:
        if _says_the_driver(error) and store_error(error).retryable:
            raise
        if isinstance(error, TimeoutError):
            raise Undone("the tool took too long") from None
        _log.warning("local_tool_raised", tool=held.card.name, error=type(error).__name__)
        raise Undone(f"the tool failed ({type(error).__name__})") from None


def _says_the_driver(error: Exception) -> bool:
    """Whether asyncpg raised it. By its frames: a command that hangs ends in a bare TimeoutError, as a tool's time."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_globals.get("__name__", "").partition(".")[0] == "asyncpg" for frame, _ in frames)
