"""The one exception of the client."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import httpx

from policy.retry_after import retry_after_seconds

UNREACHABLE = "unreachable"
UNREADABLE = "unreadable_answer"


class ApiError(Exception):
    """The API said no, or could not be reached: `status` is 0 then and `code` is `unreachable`."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        details: Mapping[str, Any] | None = None,
        request_id: str = "",
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.status = status
        self.code = code
        """Stable, snake_case."""
        self.message = message
        self.details = dict(details or {})
        self.request_id = request_id
        self.retry_after_seconds = retry_after_seconds
        """How long to wait before it is worth asking again, where the API said so."""


def error_of(response: httpx.Response) -> ApiError:
    """The error in an answer that is not 2xx, also where something before the API answered."""
    wait_seconds = retry_after_seconds(response.headers, datetime.now(UTC))
    try:
        body = response.json()["error"]
        return ApiError(
            response.status_code,
            str(body["code"]),
            str(body["message"]),
            body.get("details") or {},
            str(body.get("request_id") or ""),
            wait_seconds,
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return ApiError(
            response.status_code,
            f"http_{response.status_code}",
            f"{response.request.url.copy_with(query=None)} answered {response.status_code} {response.reason_phrase}",
            retry_after_seconds=wait_seconds,
        )


def unreachable(base_url: str, error: Exception) -> ApiError:
    """What is raised once patience is at its end."""
    why = str(error) or type(error).__name__
    return ApiError(0, UNREACHABLE, f"nothing answers at {base_url} ({why})", {"url": base_url})
