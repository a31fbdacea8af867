"""One try of a tool whose target is outside: what came of it, in the words of policy/ledger.py."""

import asyncio
from dataclasses import dataclass

import structlog

from activities.claiming import Held
from activities.edge import stop_asked
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


async def tried(held: Held, context: ToolContext) -> Try:
    """Run the tool once, within its time.

    Raises: CancelledError where this worker drains; the ledger decides what the next attempt may do.
    """
    try:
        result = await asyncio.wait_for(held.tool.run(held.args, context), held.card.timeout_seconds)
    except ToolRefused as error:
        return Try(Acted.REFUSED, error.message)
    except ToolUnavailable as error:
        return Try(Acted.NOT_SENT, error.message, retry_after_seconds=error.retry_after_seconds)
    except asyncio.CancelledError:
        if not stop_asked():
            raise
        return Try(Acted.AMBIGUOUS, "the turn was stopped while the call was under way")
    except TimeoutError:
        return Try(Acted.AMBIGUOUS, f"no answer within {held.card.timeout_seconds:g} s", timed_out=True)
    except Exception as error:
        _log.warning("tool_call_broke_off", tool=held.card.name, error=type(error).__name__)
        return Try(Acted.AMBIGUOUS, f"the call broke off ({type(error).__name__})")
    return Try(Acted.RETURNED, result=result)
