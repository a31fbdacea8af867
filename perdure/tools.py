"""The tool decorator: a typed async function with a stated effect class becomes a tool.

```python
@tool(effect="keyed", key_ttl_seconds=86_400, secrets=("desk_token",))
async def open_ticket(context: ToolContext, title: str) -> JsonValue:
    \"\"\"Open a ticket at the help desk.\"\"\"
    answer = await context.send("POST", f"{DESK}/tickets", json={"title": title})
    return answer.json()
```
A tool that is not written as it must be is refused when its module is imported, never at the call.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue, ValidationError

from contracts.agents import EffectClass, ToolCard
from contracts.digests import digest_of
from egress import AnswerWithheld
from perdure.context import ToolContext, Transaction, UndeclaredSecret
from perdure.outcomes import Audited, ToolRefused, ToolResult, ToolUnavailable, result_of
from perdure.parameters import Parameters, ToolDefinitionError
from perdure.previews import Look, Preview, PreviewOf
from policy.describing import BadTemplate, names_in
from policy.gate import tool_needs_approval

__all__ = [
    "AnswerWithheld",
    "Audited",
    "Preview",
    "Tool",
    "ToolContext",
    "ToolDefinitionError",
    "ToolRefused",
    "ToolResult",
    "ToolUnavailable",
    "Transaction",
    "UndeclaredSecret",
    "tool",
]

_CLASSES = "read (changes nothing), local (our Postgres), keyed (the target honours a key) or opaque (it does not)"
_RISKS = ("low", "medium", "high")


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool: its card for the engine, and the function behind it."""

    card: ToolCard
    function: Callable[..., Awaitable[object]]
    """As its author wrote it."""
    parameters: Parameters = field(repr=False)
    preview: PreviewOf | None = field(default=None, repr=False)
    """The read-only look at what a call would change, where its author wrote one."""

    async def run(self, args: Mapping[str, JsonValue], context: ToolContext) -> ToolResult:
        """Call the tool once.

        Raises: ToolRefused and ToolUnavailable, by which nothing happened in this attempt; anything else, by which it
        may have.
        """
        missing = [name for name in self.card.secrets if not context.secrets.get(name)]
        if missing:
            raise ToolRefused(f"the credential {missing[0]} is not set where tools run")
        try:
            call = self.parameters.bind(args)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "the arguments"
            raise ToolRefused(f"{where}: {first['msg']}") from error
        if self.parameters.context_name is not None:
            call[self.parameters.context_name] = context
        try:
            return result_of(await self.function(**call))
        except SystemExit as error:  # as such it would end the worker's loop and leave the process standing
            raise RuntimeError("the tool asked its process to exit") from error


def tool(
    function: object = None,
    /,
    *,
    effect: str | None = None,
    approval: bool | None = None,
    capability: str = "",
    risk: str = "medium",
    timeout_seconds: float = 30.0,
    key_ttl_seconds: float | None = None,
    secrets: Sequence[str] = (),
    wants_state: Sequence[str] = (),
    describe: str = "",
    preview: Look | None = None,
    max_answer_bytes: int | None = None,
    version: str = "1",
) -> Callable[[Callable[..., Awaitable[object]]], Tool]:
    """Make a tool of an async function; its docstring is what the model is told.

    effect: read, local, keyed or opaque; there is no default, because a wrong guess doubles an effect.
    approval: None asks a person for everything but `read`; True or False is the author's own word.
    describe: one sentence about a call for its reviewer, such as "Pay {amount} to {name}": filled from the arguments.
    preview: an async function of the same arguments, or some of them, that looks at the target and changes nothing.
    key_ttl_seconds: `keyed` only, and required there: how long the target remembers a key.
    max_answer_bytes: the largest HTTP answer that is read; None: as the operator has set it, 10 MiB.
    version: change it when the function's behaviour changes; open approvals of the old version then no longer count.

    Raises: ToolDefinitionError.
    """
    if function is not None:
        name = getattr(function, "__name__", repr(function))
        raise ToolDefinitionError(f'tool {name}: write @tool(effect="..."), one of {_CLASSES}')

    def make(function: Callable[..., Awaitable[object]]) -> Tool:
        name = function.__name__
        effect_class = _effect_class(name, effect)
        if not inspect.iscoroutinefunction(function):
            raise ToolDefinitionError(
                f"tool {name}: write async def; a blocking function would stop every other call of its worker"
            )
        description = inspect.getdoc(function)
        if not description:
            raise ToolDefinitionError(f"tool {name}: it needs a docstring, which is what the model is told of it")
        if risk not in _RISKS:
            raise ToolDefinitionError(f"tool {name}: risk is one of {', '.join(_RISKS)}, not {risk!r}")
        if (key_ttl_seconds is not None and key_ttl_seconds > 0) is not (effect_class is EffectClass.KEYED):
            raise ToolDefinitionError(
                f"tool {name}: key_ttl_seconds says how long the target honours a key; a keyed tool needs it, "
                "no other has it"
            )
        for label, given in (("secrets", secrets), ("wants_state", wants_state)):
            if isinstance(given, str):
                raise ToolDefinitionError(f'tool {name}: write {label}=("{given}",), with the comma')
        parameters = Parameters.of(function)
        _check_template(name, describe, parameters)
        look = PreviewOf.of(name, preview, parameters) if preview is not None else None
        traits: dict[str, Any] = {
            "name": name,
            "description": description,
            "parameters": parameters.schema,
            "effect": effect_class,
            "needs_approval": tool_needs_approval(effect_class, approval),
            "capability": capability,
            "risk": risk,
            "timeout_seconds": timeout_seconds,
            "key_ttl_seconds": key_ttl_seconds,
            "wants_state": tuple(wants_state),
            "secrets": tuple(secrets),
            "describe": describe,
            "previews": look is not None,
            "max_answer_bytes": max_answer_bytes,
        }
        try:
            unversioned = ToolCard(**traits, version="")
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise ToolDefinitionError(f"tool {name}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        digest = digest_of({**unversioned.model_dump(mode="json"), "version": version})
        return Tool(unversioned.model_copy(update={"version": digest}), function, parameters, look)

    return make


def _check_template(name: str, describe: str, parameters: Parameters) -> None:
    try:
        unknown = sorted(names_in(describe) - set(parameters.names.values()))
    except BadTemplate as error:
        raise ToolDefinitionError(f"tool {name}: describe cannot be filled: {error}") from None
    if unknown:
        raise ToolDefinitionError(f"tool {name}: describe names {unknown[0]}, which is no argument")


def _effect_class(name: str, effect: str | None) -> EffectClass:
    if effect is None:
        raise ToolDefinitionError(f"tool {name}: state its effect class: {_CLASSES}")
    try:
        return EffectClass(effect)
    except ValueError:
        raise ToolDefinitionError(f"tool {name}: {effect!r} is no effect class; it is {_CLASSES}") from None
