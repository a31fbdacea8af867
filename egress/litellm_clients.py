"""LiteLLM's HTTP clients over the transports of this package, whichever provider a model has.

LiteLLM (1.106) makes its clients in three places: `AsyncHTTPHandler` and `HTTPHandler`, which most providers use, and
the clients that it hands to the OpenAI SDK. The first and the last take their transport from
`AsyncHTTPHandler.create_async_transport`; the synchronous ones are replaced here. A client that is given a transport
reads no proxy variables. `aiohttp_openai/` models use a session of their own and are refused.
"""

import importlib
import ssl
from typing import Any

import httpx

from egress.transport import BlockingTransport, Transport
from policy.egress import Outbound

UNGUARDED = ("aiohttp_openai/",)
"""What the names of models begin with whose requests take another way out."""
BLOCKING_SECONDS = 60.0
"""For one exchange of a thread that waits, such as that of embeddings; each read has LiteLLM's own time-out."""
_RULES = "perdure_outbound"
_HANDLERS = "litellm.llms.custom_httpx.http_handler"


def guard(litellm: Any, outbound: Outbound) -> None:
    """Makes every client that LiteLLM creates from now on send under the rules of `outbound`; it has one set of rules
    in a process, the last one.

    Raises: RuntimeError if this LiteLLM makes its clients in another way.
    """
    before = getattr(litellm, _RULES, None)
    if before == outbound:
        return
    handlers: Any = importlib.import_module(_HANDLERS)
    found = (
        getattr(getattr(handlers, "AsyncHTTPHandler", None), "create_async_transport", None),
        getattr(getattr(handlers, "HTTPHandler", None), "_create_sync_transport", None),
    )
    if not all(found) or not hasattr(litellm, "client_session"):
        raise RuntimeError("this version of LiteLLM makes its HTTP clients in a way that egress/ does not know")

    def made(ssl_context: ssl.SSLContext | None = None, ssl_verify: bool | None = None, **_: Any) -> Transport:
        return Transport(outbound, verify=_context(ssl_context, ssl_verify))

    def made_blocking(_: Any) -> BlockingTransport:
        return BlockingTransport(outbound, seconds=BLOCKING_SECONDS)

    litellm.disable_aiohttp_transport = True
    litellm.force_ipv4 = False  # it mounts the proxies of the environment
    handlers.AsyncHTTPHandler.create_async_transport = staticmethod(made)
    handlers.AsyncHTTPHandler._create_async_transport = staticmethod(made)
    handlers.HTTPHandler._create_sync_transport = made_blocking
    if before is not None:
        litellm.client_session.close()
    litellm.client_session = httpx.Client(transport=made_blocking(None), trust_env=False, follow_redirects=True)
    litellm.in_memory_llm_clients_cache.flush_cache()
    setattr(litellm, _RULES, outbound)


def _context(given: ssl.SSLContext | None, verified: bool | None) -> ssl.SSLContext | None:
    """LiteLLM's own settings of certificates, if the operator has made any."""
    if given is not None or verified is not False:
        return given
    return httpx.create_ssl_context(verify=False)
