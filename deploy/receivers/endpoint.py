"""The endpoint for webhooks: each one is verified, processed once and one at a time.

It is acknowledged only after its message is sent. If the message cannot be sent, the response is 502, and Perdure sends
the webhook again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from deploy.receivers.state import ReceiverState
from perdure.sdk.webhooks import InvalidDelivery, read

SendMessage = Callable[[dict[str, Any], str], Awaitable[str]]
"""Sends the message of this webhook. It receives the place of the approval's message, and returns its new place."""
_MAX_BYTES = 65_536
_log = structlog.get_logger(__name__)


class SendFailed(Exception):
    """The message could not be sent or changed."""


class WebhookEndpoint:
    """The route that receives webhooks."""

    def __init__(self, secret: str, state: ReceiverState, send_message: SendMessage) -> None:
        self._secret, self._state, self._send_message = secret, state, send_message
        self._one_by_one = asyncio.Lock()

    async def __call__(self, request: Request) -> Response:
        """POST /perdure."""
        if int(request.headers.get("content-length") or _MAX_BYTES) >= _MAX_BYTES:
            return JSONResponse({"error": "the body is too large"}, 413)
        try:
            notice = read(self._secret, request.headers, await request.body())
        except InvalidDelivery as error:
            return JSONResponse({"error": str(error)}, 400)
        async with self._one_by_one:
            if not self._state.is_new(notice):
                return Response(status_code=204)
            try:
                place = await self._send_message(notice, self._state.message_place(notice["approval"]["id"]))
            except SendFailed as error:
                _log.warning("message_not_sent", error=str(error))
                return JSONResponse({"error": "the message could not be sent"}, 502)
            self._state.record_delivery(notice, place)
        return Response(status_code=204)
