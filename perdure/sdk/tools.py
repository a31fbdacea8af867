"""The tool decorator: a typed async function with a stated effect class becomes a tool.

```python
@tool(effect="keyed", key_ttl_seconds=86_400, secrets=("desk_token",))
async def open_ticket(context: ToolContext, title: str) -> JsonValue:
    \"\"\"Open a ticket at the help desk.\"\"\"
    answer = await context.send("POST", f"{DESK}/tickets", json={"title": title})
    return answer.json()
```
An invalid tool raises `ToolDefinitionError` when its module is imported, never at a call.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from pydantic import JsonValue, ValidationError

from perdure.contracts.agents import ToolCard
from perdure.contracts.calls import EffectClass
from perdure.contracts.values import digest_of
from perdure.core.agents.tool_versions import with_version
from perdure.core.approvals.gates import tool_needs_approval
from perdure.core.calls.description import BadTemplate, names_in
from perdure.core.calls.failures import UnusableResult, replaced
from perdure.egress import AnswerWithheld
from perdure.sdk.context import FilesForCoroutines, ToolContext, Transaction, UndeclaredSecret
from perdure.sdk.outcomes import Audited, ToolRefused, ToolResult, ToolUnavailable, result_of
from perdure.sdk.parameters import Parameters, ToolDefinitionError
from perdure.sdk.source import Code, code_of
from perdure.sdk.threads import run_in_thread

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
_EFFECT_CLASS_TEXT = (
    "read (changes nothing), local (changes Perdure's database), keyed (the target accepts idempotency keys) or "
    "opaque (it does not)"
)
_RISKS = ("low", "medium", "high")

MAX_CHECK_SECONDS = 5.0
"""The time that an author's validators have for one call."""
PreviewFunction = Callable[..., Awaitable["Preview"]]


@dataclass(frozen=True, slots=True)
class Preview:
    """The state of the target before and after a call, as JSON. Names that are in both are shown as changes.

    ```python
    async def ticket_preview(context: ToolContext, ticket: str, status: str) -> Preview:
        found = (await context.send("GET", f"{DESK}/tickets/{ticket}")).json()
        return Preview(before={"status": found["status"]}, after={"status": status})

    @tool(effect="keyed", key_ttl_seconds=86_400, preview=ticket_preview)
    async def set_status(context: ToolContext, ticket: str, status: str) -> JsonValue: ...
    ```

    A preview only reads: `context.send` sends only GET and HEAD. It has no transaction and no idempotency key. It can
    run any number of times, or never.
    """

    before: JsonValue
    after: JsonValue


@dataclass(frozen=True, slots=True)
class ToolPreview:
    """A tool's preview function, with its parameters."""

    function: PreviewFunction
    parameters: Parameters = field(repr=False)

    @classmethod
    def of(cls, tool: str, function: PreviewFunction, arguments: Parameters) -> "ToolPreview":
        """Returns the preview of the tool with these arguments.

        Raises: ToolDefinitionError if the function is not async or takes an argument that the tool does not have.
        """
        if not inspect.iscoroutinefunction(function):
            raise ToolDefinitionError(f"tool {tool}: the preview must be an async function")
        parameters = Parameters.of(function)
        unknown = sorted(set(parameters.names.values()) - set(arguments.names.values()))
        if unknown:
            raise ToolDefinitionError(
                f"tool {tool}: the preview takes {unknown[0]}, which is not an argument of the tool"
            )
        return cls(function, parameters)

    async def make(self, args: Mapping[str, JsonValue], context: ToolContext) -> Preview:
        """Runs the preview once.

        Raises: whatever the author's function raises; ArgumentsRefused; ToolUnavailable; TypeError if it returns no
        Preview.
        """
        names = self.parameters.names.values()
        own = {name: value for name, value in args.items() if name in names}
        checks, name = self.parameters.checks_more, self.function.__name__
        arguments = await _bind(self.parameters, own, name, MAX_CHECK_SECONDS, checks=checks)
        if self.parameters.context_name is not None:
            arguments[self.parameters.context_name] = context
        with _loop_kept():
            preview = await self.function(**arguments)
        if not isinstance(preview, Preview):
            raise UnusableResult("a preview must return a Preview", inspect.unwrap(self.function))
        return Preview(_result(self.function, preview.before).output, _result(self.function, preview.after).output)


def _result(function: Callable[..., object], returned: object) -> ToolResult:
    """Returns what the function returned as a result. Raises: UnusableResult."""
    try:
        return result_of(returned)
    except TypeError as error:
        raise UnusableResult(str(error), inspect.unwrap(function)) from error


@contextmanager
def _loop_kept() -> Iterator[None]:
    """Raises a RuntimeError in place of what would end the worker's loop, or pass its message on to Temporal, such as
    SystemExit or KeyboardInterrupt."""
    try:
        yield
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        raise replaced(error) from error


async def _bind(
    parameters: Parameters, args: Mapping[str, JsonValue], name: str, seconds: float, *, checks: bool
) -> dict[str, Any]:
    """Returns the arguments as `Parameters.bind` does, in a thread if the types check more than their schema.

    Raises: ArgumentsRefused; ToolUnavailable.
    """
    if not checks:
        return parameters.bind(args)
    try:
        async with asyncio.timeout(seconds):
            bound = await run_in_thread(parameters.bind, {"args": args}, name, has_effects=False)
            return cast(dict[str, Any], bound)
    except TimeoutError:
        message = f"the types of the tool took longer than {seconds:g} s to check the arguments; it was not called"
        raise ToolUnavailable(message) from None


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool: its card for the engine, and its function."""

    card: ToolCard
    function: Callable[..., object]
    """The author's function. If it is not `async`, it runs in a thread."""
    parameters: Parameters = field(repr=False)
    preview: ToolPreview | None = field(default=None, repr=False)
    """The read-only preview of a call, if the author wrote one."""
    retry_errors: tuple[type[Exception], ...] = ()
    """Errors of the function after which a `read` or `keyed` call is retried although they look like mistakes."""
    folder: Path | None = field(default=None, repr=False, compare=False)
    """The folder of its app; None for the engine's own tools."""
    uncovered: tuple[str, ...] = field(default=(), repr=False, compare=False)
    """Sentences about code that the card's version does not cover."""

    @property
    def can_send(self) -> bool:
        """True for a coroutine that receives a context, and so can use `context.send`."""
        return self.is_coroutine and self.parameters.context_name is not None

    @property
    def is_coroutine(self) -> bool:
        """True if the event loop runs the function; otherwise it runs in a thread."""
        return inspect.iscoroutinefunction(inspect.unwrap(self.function))

    async def run(self, args: Mapping[str, JsonValue], context: ToolContext) -> ToolResult:
        """Calls the tool once.

        Raises: ToolRefused or ToolUnavailable if nothing happened in this attempt. After any other exception, an effect
        may have happened.
        """
        missing = [name for name in self.card.secrets if not context.secrets.get(name)]
        if missing:
            raise ToolRefused(f"the secret {missing[0]} is not set in the worker's environment")
        try:
            arguments = await self.bind(args)
        except asyncio.CancelledError:
            if self.card.effect is EffectClass.LOCAL:  # its transaction is rolled back
                raise
            raise ToolUnavailable("the call ended before the tool was called") from None
        if self.parameters.context_name is not None:
            arguments[self.parameters.context_name] = self._own_context(context)
        with _loop_kept():
            return _result(self.function, await self._call(arguments))

    async def bind(self, args: Mapping[str, JsonValue]) -> dict[str, Any]:
        """Returns the function's arguments, checked and converted by its types. An author's validators run in a thread,
        because they may wait.

        Raises: ArgumentsRefused; ToolUnavailable.
        """
        seconds = min(MAX_CHECK_SECONDS, self.card.timeout_seconds / 2)
        return await _bind(self.parameters, args, self.card.name, seconds, checks=self.card.checks)

    def _own_context(self, context: ToolContext) -> ToolContext:
        is_plain = not self.is_coroutine and context.files is not None
        return replace(context, files=FilesForCoroutines()) if is_plain else context

    async def _call(self, arguments: Mapping[str, object]) -> object:
        if not inspect.iscoroutinefunction(self.function):
            return await run_in_thread(self.function, arguments, self.card.name)
        result: object = await self.function(**arguments)
        return result


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
    preview: PreviewFunction | None = None,
    max_answer_bytes: int | None = None,
    retry_errors: Sequence[type[Exception]] = (),
    version: str | None = None,
) -> Callable[[Callable[..., object]], Tool]:
    """Makes a tool from a function, whose docstring is the description for the model.

    - effect: read, local, keyed or opaque. It has no default, because a wrong guess doubles an effect.
    - approval: None requires one for every effect except `read`; True or False overrides that.
    - describe: one sentence about a call for its reviewer, such as "Pay {amount} to {name}", filled from the arguments.
    - preview: an async function with some or all of the same arguments. It reads the target and changes nothing.
    - key_ttl_seconds: for `keyed` only, and required there: how long the target remembers an idempotency key.
    - max_answer_bytes: the largest HTTP response that is read; None uses the operator's setting, by default 10 MiB.
    - retry_errors: for `read` and `keyed`: errors of the code, such as ValueError, that are retried nevertheless.
    - version: replaces the code in the tool's version; another one makes open approvals outdated (docs/approvals.md).

    Raises: ToolDefinitionError.
    """
    if function is not None:
        name = getattr(function, "__name__", repr(function))
        raise ToolDefinitionError(f'tool {name}: write @tool(effect="..."), one of {_EFFECT_CLASS_TEXT}')

    return _ToolOptions(
        effect=effect, approval=approval, capability=capability, risk=risk, timeout_seconds=timeout_seconds,
        key_ttl_seconds=key_ttl_seconds, secrets=secrets, wants_state=wants_state, describe=describe, preview=preview,
        max_answer_bytes=max_answer_bytes, retry_errors=retry_errors, version=version,
    ).make  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _ToolOptions:
    """The arguments of `tool`."""

    effect: str | None
    approval: bool | None
    capability: str
    risk: str
    timeout_seconds: float
    key_ttl_seconds: float | None
    secrets: Sequence[str]
    wants_state: Sequence[str]
    describe: str
    preview: PreviewFunction | None
    max_answer_bytes: int | None
    retry_errors: Sequence[type[Exception]]
    version: str | None

    def make(self, function: Callable[..., object]) -> Tool:
        """Returns the tool of a function, whose docstring is the description for the model.

        Raises: ToolDefinitionError if the function or its settings cannot be a tool.
        """
        name = function.__name__
        effect_class = _effect_class(name, self.effect)
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ToolDefinitionError(f"tool {name}: return its result; a function with `yield` cannot be a tool")
        if effect_class is EffectClass.LOCAL and not inspect.iscoroutinefunction(function):
            raise ToolDefinitionError(f"tool {name}: a local tool needs `async def`, because its transaction does")
        description = inspect.getdoc(function)
        if not description:
            raise ToolDefinitionError(f"tool {name}: it needs a docstring, which is its description for the model")
        self._check(name, effect_class)
        parameters = Parameters.of(function)
        _check_template(name, self.describe, parameters)
        preview = ToolPreview.of(name, self.preview, parameters) if self.preview is not None else None
        fields = self._card_fields(effect_class) | {
            "name": name,
            "description": description,
            "parameters": parameters.schema,
            "previews": preview is not None,
        }
        try:
            unversioned = ToolCard(**fields, version="")
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise ToolDefinitionError(f"tool {name}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        code = Code(()) if self.version is not None else code_of(function, *filter(None, (self.preview,)))
        card = self._versioned(unversioned, parameters, dict(code.parts))
        return Tool(card, function, parameters, preview, tuple(self.retry_errors), uncovered=code.notes)

    def _versioned(self, card: ToolCard, parameters: Parameters, code: dict[str, str]) -> ToolCard:
        """Returns the card with its versions. Whether its types check more does not change the tool: approvals from
        before this was known stay valid."""
        of_rule_1 = {**card.model_dump(mode="json"), "version": self.version or "1"}
        of_rule_1["parameters"] = parameters.versioned_schema
        if parameters.own_defaults:  # without any, the version is that of before they were covered
            of_rule_1["own_defaults"] = dict(parameters.own_defaults)
        own: dict[str, Any] = {"own_defaults": dict(parameters.own_defaults)}
        if self.version is not None:
            own["version"] = self.version
        card = card.model_copy(update={"checks": parameters.checks_more})
        schema, first = parameters.versioned_schema, digest_of(of_rule_1)
        return with_version(card, parameters=schema, code=code, own=own, first=first)

    def _check(self, name: str, effect_class: EffectClass) -> None:
        if self.risk not in _RISKS:
            raise ToolDefinitionError(f"tool {name}: risk is one of {', '.join(_RISKS)}, not {self.risk!r}")
        has_ttl = self.key_ttl_seconds is not None and self.key_ttl_seconds > 0
        if has_ttl is not (effect_class is EffectClass.KEYED):
            raise ToolDefinitionError(
                f"tool {name}: key_ttl_seconds, the time for which the target keeps a key, is required for keyed "
                "tools and allowed for them only"
            )
        if not isinstance(self.retry_errors, Sequence) or not all(
            isinstance(each, type) and issubclass(each, Exception) for each in self.retry_errors
        ):
            raise ToolDefinitionError(f"tool {name}: write retry_errors=(ValueError,), a tuple of exception classes")
        if self.retry_errors and effect_class not in (EffectClass.READ, EffectClass.KEYED):
            raise ToolDefinitionError(
                f"tool {name}: retry_errors is for read and keyed tools; {effect_class.value} calls are tried once"
            )
        for label, value in (("secrets", self.secrets), ("wants_state", self.wants_state)):
            if isinstance(value, str):
                raise ToolDefinitionError(f'tool {name}: write {label}=("{value}",), with a comma, to make it a tuple')

    def _card_fields(self, effect_class: EffectClass) -> dict[str, Any]:
        """Returns the fields of the card that are copied from the arguments."""
        return {
            "effect": effect_class,
            "needs_approval": tool_needs_approval(effect_class, self.approval),
            "capability": self.capability,
            "risk": self.risk,
            "timeout_seconds": self.timeout_seconds,
            "key_ttl_seconds": self.key_ttl_seconds,
            "wants_state": tuple(self.wants_state),
            "secrets": tuple(self.secrets),
            "describe": self.describe,
            "max_answer_bytes": self.max_answer_bytes,
        }


def _check_template(name: str, describe: str, parameters: Parameters) -> None:
    try:
        unknown = sorted(names_in(describe) - set(parameters.names.values()))
    except BadTemplate as error:
        raise ToolDefinitionError(f"tool {name}: describe cannot be rendered: {error}") from None
    if unknown:
        raise ToolDefinitionError(f"tool {name}: describe uses {unknown[0]}, which is not an argument")


def _effect_class(name: str, effect: str | None) -> EffectClass:
    if effect is None:
        raise ToolDefinitionError(f"tool {name}: set the effect class: {_EFFECT_CLASS_TEXT}")
    try:
        return EffectClass(effect)
    except ValueError:
        raise ToolDefinitionError(f"tool {name}: {effect!r} is not an effect class; use {_EFFECT_CLASS_TEXT}") from None
