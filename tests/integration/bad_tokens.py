"""Access tokens that are forged, changed or old: each is like a good one but for what its name says."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from typing import Any

from joserfc import jwt
from joserfc.jwk import ECKey, OKPKey, RSAKey

from perdure.core.identity import AccessKey

LIES: dict[str, list[Any]] = {
    "iss": ["somebody", ["perdure"], ""],
    "aud": ["perdure-browser", "somebody", ["somebody"], {"perdure-api": True}, ""],
    "sid": ["00000000-0000-7000-8000-000000000000", "no id", 7, ["a"], {}],
    "exp": ["tomorrow", True, float("nan"), float("inf"), -1, 0],
    "iat": ["now"],
    "nbf": ["soon"],
}


def part(value: object) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode_token(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    head, body = (json.loads(base64.urlsafe_b64decode(each + "===")) for each in token.split(".")[:2])
    return head, body


def sign_token(header: dict[str, Any], claims: dict[str, Any], key: bytes, algorithm: str = "sha256") -> str:
    """Whatever header it is, with a signature that fits."""
    text = f"{part(header)}.{part(claims)}"
    return f"{text}.{part(hmac.new(key, text.encode(), getattr(hashlib, algorithm)).digest())}"


def bad_tokens(good: str, key: AccessKey) -> Iterator[tuple[str, str]]:
    """(what is wrong, token) for a token that is good and the key that signed it."""
    header, claims = decode_token(good)
    head, body, signature = good.split(".")
    now = int(time.time())

    def lying(**changed: Any) -> str:
        return sign_token(header, {**claims, **changed}, key.secret)

    for algorithm in ("none", "None", "NONE", "nOnE", ""):
        yield f"alg {algorithm!r}, unsigned", f"{part({**header, 'alg': algorithm})}.{body}."
        yield f"alg {algorithm!r}, signed", f"{part({**header, 'alg': algorithm})}.{body}.{signature}"
    for name, values in LIES.items():
        for value in values:
            yield f"{name} is {value!r}", lying(**{name: value})
    for name in ("iss", "aud", "exp", "iat", "sub", "jti", "sid"):
        yield f"without {name}", sign_token(header, {each: claims[each] for each in claims if each != name}, key.secret)
    yield "expired", lying(exp=now - 31)
    yield "expired long ago", lying(exp=now - 10**8)
    yield "not yet valid", lying(nbf=now + 3_600)
    yield "issued in the future", lying(iat=now + 3_600)
    yield "no key id", sign_token({each: header[each] for each in header if each != "kid"}, claims, key.secret)
    for kid, secret in (("00000000", key.secret), ("../../dev/null", b""), (7, key.secret), ([key.id], key.secret)):
        yield f"the key id {kid}", sign_token({**header, "kid": kid}, claims, secret)
    yield "another type", sign_token({**header, "typ": "JWT"}, claims, key.secret)
    yield "a header that must be understood", sign_token({**header, "crit": ["b64"], "b64": False}, claims, key.secret)
    for secret in (key.id.encode(), b"", b"another key of more than 32 characters"):
        yield f"signed by {secret!r}", sign_token(header, claims, secret)
    yield "another algorithm", sign_token({**header, "alg": "HS512"}, claims, key.secret, "sha512")
    yield "says another algorithm", sign_token({**header, "alg": "HS384"}, claims, key.secret)
    yield (
        "brings its own key",
        sign_token({**header, "jwk": {"kty": "oct", "k": part(b"mine" * 10)}}, claims, b"mine" * 10),
    )
    yield "names its own keys", sign_token({**header, "jku": "http://127.0.0.1:9/keys"}, claims, b"mine" * 10)
    curves = ((ECKey.generate_key("P-256"), "ES256"), (OKPKey.generate_key("Ed25519"), "Ed25519"))
    for own, algorithm in ((RSAKey.generate_key(2048), "RS256"), *curves):
        yield f"signed by {algorithm}", jwt.encode({**header, "alg": algorithm}, claims, own, algorithms=[algorithm])
        yield f"HMAC with the public key of {algorithm}", sign_token(header, claims, own.as_pem(private=False))
    for bent in (f"{head}.{body}.", good[:-1], good[: len(good) // 2], head, f"{head}.{body}", good + good):
        yield f"of {len(bent)} characters", bent
    yield "four parts", f"{good}.x"
    yield "five parts, as if encrypted", f"{good}.x.x"
    yield "claims that are a list", sign_token(header, [claims], key.secret)  # type: ignore[arg-type]
    yield "claims of another", f"{head}.{part({**claims, 'sub': claims['jti']})}.{signature}"
    yield "a header that is no JSON", f"eyJ.{body}.{signature}"
    yield "a signature in another alphabet", f"{head}.{body}.{signature[:-4]}+/=="
    yield "very long", f"{good}{'A' * 5_000}"
