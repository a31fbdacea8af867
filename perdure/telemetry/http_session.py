"""The HTTP session of the exporters: what they are answered is read no further than its status.

Both exporters use requests. The operator writes where they send to, so the address is not checked; a redirect is not
followed, and a proxy is not taken from the environment.
"""

from typing import Any

import requests


class TraceSession(requests.Session):
    """A session for one exporter, which may mount adapters of its own."""

    def send(self, request: requests.PreparedRequest, **given: Any) -> requests.Response:
        """Sends a request and returns its answer without the body."""
        response = super().send(request, **{**given, "stream": True})
        response._content = b""  # requests reads it whole where somebody looks at it
        response.close()
        return response

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Returns None: no redirect is followed."""

    def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> dict[str, Any]:
        """Takes the certificates of the environment, and none of its proxies."""
        return {**super().merge_environment_settings(url, proxies, stream, verify, cert), "proxies": {}}
