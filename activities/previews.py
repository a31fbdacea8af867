"""`tools.preview`: the read-only look of a tool's author at what a call that waits for its reviewer would change.

Whatever goes wrong is kept as a sentence in the preview's place: nobody's decision waits for it.
"""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog
from pydantic import JsonValue, ValidationError
from temporalio import activity

from activities.deps import Deps
from activities.edge import edge
from contracts.agents import ToolCard
from contracts.digests import canonical_json
from contracts.previews import PreviewAsk, PreviewKept
from egress import AnswerWithheld, EgressRefused
from perdure.previews import Preview, PreviewOf
from perdure.tools import Tool, ToolContext, ToolRefused, ToolUnavailable
from store import previews

SECONDS = 8.0
"""For one look; a person waits for it."""
MOST_CHARACTERS = 16_000
"""Of both its values as JSON."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """The tool behind an approval, on this worker."""

    preview: PreviewOf
    card: ToolCard


class PreviewActivities:
    """The previews of one worker."""

    def __init__(self, deps: Deps, seconds: float = SECONDS) -> None:
        self._deps, self._seconds = deps, seconds

    @activity.defn(name="tools.preview")
    async def preview(self, ask: PreviewAsk) -> PreviewKept:
        """Make the preview of a request that is still open, and keep it under the database's time.

        Effects: what the author's function reads. Retry: safe, it changes nothing but the preview.
        """
        async with edge():
            async with self._deps.db.transaction(ask.address.tenant_id) as tx:
                asked = await previews.asked(tx, ask.approval_id)
                found = None
                if asked is not None:
                    agent = await self._deps.shelf.at(tx, asked.agent_id, asked.agent_version)
                    found = self._found(asked, agent.card(asked.tool))
            if asked is None or found is None:
                return PreviewKept(kept=False)
            made = {"fault": found} if isinstance(found, str) else await self._made(asked, found)
            async with self._deps.db.transaction(ask.address.tenant_id) as tx:
                return PreviewKept(kept=await previews.keep(tx, ask.approval_id, {"digest": asked.digest, **made}))

    def _found(self, asked: previews.Asked, card: ToolCard | None) -> Found | str:
        """The tool as it was asked for, or why it has no preview here."""
        tool = self._deps.toolbox.find(asked.agent_id, asked.tool, card)
        if not isinstance(tool, Tool) or tool.preview is None or tool.card.version != asked.tool_version:
            return "the tool has changed since, or is not on this worker"
        return Found(tool.preview, tool.card)

    async def _made(self, asked: previews.Asked, found: Found) -> dict[str, JsonValue]:
        secrets = self._deps.toolbox.secrets_for(found.card)
        missing = [name for name in found.card.secrets if not secrets.get(name)]
        if missing:
            return {"fault": f"the credential {missing[0]} is not set where tools run"}
        context = ToolContext(
            card=found.card,
            tenant_id=asked.tenant_id,
            turn_id=asked.turn_id,
            conversation_id=asked.conversation_id,
            call_id=asked.call_id,
            user_id=asked.user_id,
            idempotency_key="",
            deadline=datetime.now(UTC) + timedelta(seconds=self._seconds),
            http=self._deps.toolbox.http_for(asked.agent_id),
            secrets=secrets,
            reads_only=True,
        )
        try:
            made = await asyncio.wait_for(found.preview.make(asked.args, context), self._seconds)
        except (ToolRefused, ToolUnavailable) as error:
            return {"fault": error.message}
        except (AnswerWithheld, EgressRefused) as error:
            return {"fault": str(error)}
        except ValidationError:
            return {"fault": "the arguments do not fit the preview"}
        except TimeoutError:
            return {"fault": f"no answer within {self._seconds:g} s"}
        except Exception as error:  # an author's code may raise anything, and its text may quote anything
            _log.warning("preview_broke_off", tool=asked.tool, error=type(error).__name__)
            return {"fault": f"it broke off ({type(error).__name__})"}
        return _bounded(made)


def _bounded(made: Preview) -> dict[str, JsonValue]:
    long = len(canonical_json([made.before, made.after]))
    if long > MOST_CHARACTERS:
        return {"fault": f"it is too long to be shown ({long:,} characters)"}
    return {"before": made.before, "after": made.after}
