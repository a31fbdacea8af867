"""The HTTP session of the exporters. It reads only the status of a response.

Both exporters use requests. The operator sets their addresses, so an address is not checked. Redirects are not
followed, and no proxy is taken from the environment.
"""

from typing import Any

import requests


class TraceSession(requests.Session):
    """A session for one exporter, which can mount its own adapters."""

    def send(self, request: requests.PreparedRequest, **given: Any) -> requests.Response:
        """Sends a request and returns its response. The body is dropped unread, because exporters do not need it."""
        response = super().send(request, **{**given, "stream": True})
        response._content = b""  # Without this, requests would read the whole body on access.
        response.close()
        return response

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Returns None, so that no redirect is followed."""

    def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> dict[str, Any]:
        """Uses the certificates of the environment but not its proxies."""
        return {**super().merge_environment_settings(url, proxies, stream, verify, cert), "proxies": {}}
