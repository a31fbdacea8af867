"""A provider double that plays an agent's own script over real HTTP, on OpenAI's and on Anthropic's route."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from perdure.activities.providers.provider import Complete, ProviderRequest, TextDelta
from perdure.activities.providers.scripted import Script, ScriptedProvider
from tests.doubles.anthropic_wire import message_lines, openai_shape
from tests.doubles.provider import ProviderDouble, Seen
from tests.doubles.provider_steps import Call, Step
from tests.doubles.tool_rules import anthropic_refusal
from tests.doubles.wire_rules import fault_of


class PlayingDouble(ProviderDouble):
    """Says what the scripted model would say to the same request."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self._model = ScriptedProvider(script.model_copy(update={"tokens_per_second": 0.0}))
        self.app.router.routes.insert(0, Route("/v1/messages", self._messages, methods=["POST"]))

    @property
    def root(self) -> str:
        """What a client of Anthropic's takes as its base address."""
        return self.api_base.removesuffix("/v1")

    def forget(self) -> None:
        self.log.clear()

    async def _step(self, seen: Seen) -> Step:
        shape = openai_shape(seen.body)
        request = ProviderRequest(seen.model, tuple(shape["messages"]), tuple(shape["tools"]))
        text, calls = "", list[Call]()
        async for chunk in self._model.stream(request):
            if isinstance(chunk, TextDelta):
                text += chunk.text
            elif isinstance(chunk, Complete):
                calls += [
                    Call(name=draft.name, arguments=draft.raw_arguments, id=draft.provider_id)
                    for draft in chunk.tool_calls
                ]
        return Step(text=text, calls=tuple(calls))

    async def _messages(self, request: Request) -> Response:
        seen = await self._arrived(request)
        refusal = anthropic_refusal(seen.body)
        if refusal is not None:
            return JSONResponse(refusal, 400)
        if fault := fault_of(seen.body):
            seen.outcome = "400"
            return JSONResponse({"type": "error", "error": {"type": "invalid_request_error", "message": fault}}, 400)
        step = await self._step(seen)
        seen.outcome = "answered"
        return StreamingResponse(message_lines(step, seen.body), media_type="text/event-stream")
