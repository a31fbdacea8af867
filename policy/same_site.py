"""Whether a request comes from a page of this very server, as the browser that sent it says."""

from urllib.parse import urlsplit

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""They change nothing."""
_OWN = frozenset({"same-origin", "none"})
"""What browsers put into Sec-Fetch-Site for a request of the own origin, or of the person by hand."""


def is_foreign(host: str, origin: str, fetch_site: str) -> bool:
    """Whether the headers Host, Origin and Sec-Fetch-Site (empty: not sent) show that another site's page asks.

    Schemes are not compared: behind a proxy that ends TLS the server does not know its own. A browser sends Origin with
    every request that changes something; whatever sends neither header is no browser, and has no cookie by accident.
    """
    if origin:
        return not host or urlsplit(origin).netloc.lower() != host.lower()
    return bool(fetch_site) and fetch_site.lower() not in _OWN


def local_path(given: str, otherwise: str) -> str:
    """`given` where it leads to this server and nowhere else, else `otherwise`.

    Browsers read a backslash as a slash and drop control characters, and `//` begins another host.
    """
    if not given.startswith("/") or given[1:2] in ("/", "\\") or not given.isprintable() or "\\" in given:
        return otherwise
    return given
