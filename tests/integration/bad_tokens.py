"""Access tokens that somebody made, bent or kept: each is like a good one but for what its name says."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from typing import Any

from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from perdure.core.identity import AccessKey

UNSIGNED = ("none", "None", "NONE", "nOnE", "")
LIES: tuple[tuple[str, Any], ...] = (
    ("iss", "somebody"),
    ("iss", ["perdure"]),
    ("iss", ""),
    ("aud", "perdure-browser"),
    ("aud", "somebody"),
    ("aud", ["somebody"]),
    ("aud", {"perdure-api": True}),
    ("aud", ""),
    ("sid", "00000000-0000-7000-8000-000000000000"),
    ("sid", "no id"),
    ("sid", 7),
    ("sid", ["a"]),
    ("sid", {}),
    ("exp", "tomorrow"),
    ("exp", True),
    ("exp", float("nan")),
    ("exp", float("inf")),
    ("exp", -1),
    ("exp", 0),
    ("iat", "now"),
    ("nbf", "soon"),
)
CLAIMS = ("iss", "aud", "exp", "iat", "sub", "jti", "sid")


def part(value: object) -> str:
    """As a part of a token."""
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def opened(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and claims."""
    head, body = (json.loads(base64.urlsafe_b64decode(each + "===")) for each in token.split(".")[:2])
    return head, body


def signed(header: dict[str, Any], claims: dict[str, Any], key: bytes, algorithm: str = "sha256") -> str:
    """Whatever header it is, with a signature that fits."""
    text = f"{part(header)}.{part(claims)}"
    return f"{text}.{part(hmac.new(key, text.encode(), getattr(hashlib, algorithm)).digest())}"


def bad_tokens(good: str, key: AccessKey) -> Iterator[tuple[str, str]]:
    """(what is wrong, token) for a token that is good and the key that signed it."""
    header, claims = opened(good)
    head, body, signature = good.split(".")
    now = int(time.time())

    def lying(**changed: Any) -> str:
        return signed(header, {**claims, **changed}, key.secret)

    for algorithm in UNSIGNED:
        yield f"alg {algorithm!r}, unsigned", f"{part({**header, 'alg': algorithm})}.{body}."
        yield f"alg {algorithm!r}, signed", f"{part({**header, 'alg': algorithm})}.{body}.{signature}"
    for name, value in LIES:
        yield f"{name} is {value!r}", lying(**{name: value})
    for name in CLAIMS:
        without = {each: claims[each] for each in claims if each != name}
        yield f"without {name}", signed(header, without, key.secret)
    yield "expired", lying(exp=now - 31)
    yield "expired long ago", lying(exp=now - 10**8)
    yield "not yet valid", lying(nbf=now + 3_600)
    yield "issued in the future", lying(iat=now + 3_600)
    yield "no key id", signed({each: header[each] for each in header if each != "kid"}, claims, key.secret)
    yield "a key id that nobody has", signed({**header, "kid": "00000000"}, claims, key.secret)
    yield "a key id that is a path", signed({**header, "kid": "../../dev/null"}, claims, b"")
    yield "a key id that is a number", signed({**header, "kid": 7}, claims, key.secret)
    yield "a key id that is a list", signed({**header, "kid": [key.id]}, claims, key.secret)
    yield "another type", signed({**header, "typ": "JWT"}, claims, key.secret)
    yield "a header that must be understood", signed({**header, "crit": ["b64"], "b64": False}, claims, key.secret)
    yield "signed by the key's id", signed(header, claims, key.id.encode())
    yield "signed by nothing", signed(header, claims, b"")
    yield "signed by another", signed(header, claims, b"another key of more than 32 characters")
    yield "another algorithm", signed({**header, "alg": "HS512"}, claims, key.secret, "sha512")
    yield "says another algorithm", signed({**header, "alg": "HS384"}, claims, key.secret)
    yield "brings its own key", signed({**header, "jwk": {"kty": "oct", "k": part(b"mine" * 10)}}, claims, b"mine" * 10)
    yield "names its own keys", signed({**header, "jku": "http://127.0.0.1:9/keys"}, claims, b"mine" * 10)
    for own, algorithm in (
        (RSAKey.generate_key(2048), "RS256"),
        (ECKey.generate_key("P-256"), "ES256"),
        (OKPKey.generate_key("Ed25519"), "Ed25519"),
    ):
        yield f"signed by {algorithm}", jwt.encode({**header, "alg": algorithm}, claims, own, algorithms=[algorithm])
        public = own.as_pem(private=False)
        yield f"HMAC with the public key of {algorithm}", signed(header, claims, public)
    yield "without its signature", f"{head}.{body}."
    yield "cut", good[:-1]
    yield "cut in the middle", good[: len(good) // 2]
    yield "one part", head
    yield "two parts", f"{head}.{body}"
    yield "four parts", f"{good}.x"
    yield "five parts, as if encrypted", f"{good}.x.x"
    yield "doubled", good + good
    yield "claims that are a list", signed(header, [claims], key.secret)  # type: ignore[arg-type]
    yield "claims of another", f"{head}.{part({**claims, 'sub': claims['jti']})}.{signature}"
    yield "a header that is no JSON", f"eyJ.{body}.{signature}"
    yield "a signature in another alphabet", f"{head}.{body}.{signature[:-4]}+/=="
    yield "very long", f"{good}{'A' * 5_000}"
    assert OctKey.import_key(key.secret), "the key is one"
