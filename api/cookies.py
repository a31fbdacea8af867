"""The browser's cookies: out of reach of scripts, sent to this host alone, over TLS wherever there is TLS."""

from datetime import datetime

from starlette.responses import Response

SESSION = "perdure_session"
_HOST_PREFIX = "__Host-"
"""With it a browser takes the cookie only over TLS, from this very host, for all of it: no neighbour can plant one."""
_MOST_CHARACTERS = 16_384


def name_of(cookie: str, *, secure: bool) -> str:
    """What the cookie is called."""
    return f"{_HOST_PREFIX}{cookie}" if secure else cookie


def read(header: str, cookie: str, *, secure: bool) -> str:
    """The value of this cookie in a Cookie header; empty where there is none, or several that contradict each other."""
    if len(header) > _MOST_CHARACTERS:
        return ""
    name = name_of(cookie, secure=secure)
    pairs = (part.partition("=") for part in header.split(";"))
    found = {value.strip() for given, _, value in pairs if given.strip() == name}
    return found.pop() if len(found) == 1 else ""


def put(response: Response, cookie: str, value: str, *, secure: bool, expires: datetime, strict: bool = False) -> None:
    """Set the cookie. Lax: a link from elsewhere finds the person signed in, a form from elsewhere does not. `strict`:
    it is not sent along from elsewhere at all."""
    response.set_cookie(
        name_of(cookie, secure=secure),
        value,
        expires=expires,
        path="/",
        secure=secure,
        httponly=True,
        samesite="strict" if strict else "lax",
    )


def clear(response: Response, cookie: str, *, secure: bool) -> None:
    """Take the cookie away."""
    response.delete_cookie(name_of(cookie, secure=secure), path="/", secure=secure, httponly=True, samesite="lax")


def clearing(cookie: str, *, secure: bool) -> tuple[bytes, bytes]:
    """The header that takes the cookie away, for an answer that is no Response."""
    carrier = Response()
    clear(carrier, cookie, secure=secure)
    return b"set-cookie", carrier.headers["set-cookie"].encode("latin-1")
