"""A preview: what a call would find at its target and what it would leave there, for the person who decides on it.

```python
async def ticket_preview(context: ToolContext, ticket: str, status: str) -> Preview:
    found = (await context.send("GET", f"{DESK}/tickets/{ticket}")).json()
    return Preview(before={"status": found["status"]}, after={"status": status})

@tool(effect="keyed", key_ttl_seconds=86_400, preview=ticket_preview)
async def set_status(context: ToolContext, ticket: str, status: str) -> JsonValue: ...
```
It only reads: `context.send` sends GET and HEAD and nothing else, there is no transaction and no key. It may be made
any number of times, or never.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from perdure.context import ToolContext
from perdure.outcomes import result_of
from perdure.parameters import Parameters, ToolDefinitionError

Look = Callable[..., Awaitable["Preview"]]


@dataclass(frozen=True, slots=True)
class Preview:
    """JSON values; those that have the same names are shown as what changes."""

    before: JsonValue
    after: JsonValue


@dataclass(frozen=True, slots=True)
class PreviewOf:
    """A tool's preview, ready to be made."""

    function: Look
    parameters: Parameters = field(repr=False)

    @classmethod
    def of(cls, tool: str, function: Look, arguments: Parameters) -> "PreviewOf":
        """The preview of the tool with these arguments.

        Raises: ToolDefinitionError.
        """
        if not inspect.iscoroutinefunction(function):
            raise ToolDefinitionError(f"tool {tool}: its preview is an async function")
        own = Parameters.of(function)
        unknown = sorted(set(own.names.values()) - set(arguments.names.values()))
        if unknown:
            raise ToolDefinitionError(f"tool {tool}: its preview takes {unknown[0]}, which is no argument of the tool")
        return cls(function, own)

    async def make(self, args: Mapping[str, JsonValue], context: ToolContext) -> Preview:
        """Look once.

        Raises: whatever the author's function raises; pydantic.ValidationError; TypeError where it gave no Preview.
        """
        names = self.parameters.names.values()
        call = self.parameters.bind({name: value for name, value in args.items() if name in names})
        if self.parameters.context_name is not None:
            call[self.parameters.context_name] = context
        made = await self.function(**call)
        if not isinstance(made, Preview):
            raise TypeError("a preview returns a Preview")
        return Preview(result_of(made.before).output, result_of(made.after).output)
