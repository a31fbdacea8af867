"""People sign in, by passwords or links, stay signed in, and are out at once when they should be."""

import asyncio
import base64
import hashlib
import hmac
import json
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import randrange
from typing import Any

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OKPKey, RSAKey

from perdure.api.credentials import Audience, TokenRefused
from perdure.contracts.values import sha256_hex
from perdure.core.identity import AccessKey
from perdure.core.passwords import ACCOUNT, ADDRESS, DEVICE, PLACE
from perdure.local import DataParts
from perdure.store.database import new_id
from perdure.store.identity import registration, users
from tests.conftest import Person, Urls, as_owner
from tests.integration.conftest import Api
from tests.integration.test_api_access import PASSWORD, Team
from tests.integration.test_api_process import TwoApis, two_apis
from tests.integration.test_api_turns import code, refusal

LIES: dict[str, list[Any]] = {
    "iss": ["somebody", ["perdure"], ""],
    "aud": ["perdure-browser", "somebody", ["somebody"], {"perdure-api": True}, ""],
    "sid": ["00000000-0000-7000-8000-000000000000", "no id", 7, ["a"], {}],
    "exp": ["tomorrow", True, float("nan"), float("inf"), -1, 0], "iat": ["now"], "nbf": ["soon"],
}  # fmt: skip
FORM = {"content-type": "application/x-www-form-urlencoded"}
OURS = {"X-Perdure-Request": "1"}
CODES = "/v1/auth/codes"
WRONG = "a wrong one, surely"


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


@pytest.fixture(scope="module", autouse=True)
async def setup_code(api: Api, urls: Urls) -> str:
    async with as_owner(urls.owner, "fresh") as owner, owner.transaction():
        await users.ensure_tenant(owner, "fresh")
        return (await registration.ensure_code(owner, "fresh", "", local=False)).code


async def invited(api: Api, *roles: str) -> str:
    return (await Team(api).invited(api.people["admin"].token, *roles))[0]


@pytest.fixture
async def ann(api: Api) -> str:
    return await invited(api, "requester", "reviewer")


async def signed_in(client: httpx.AsyncClient, name: str) -> httpx.Response:
    return await client.post("/v1/auth/login", json={"name": name, "password": PASSWORD})


def bearer(answer: httpx.Response) -> dict[str, str]:
    return {"Authorization": f"Bearer {answer.json()['access_token']}"}


async def test_after_the_first_user_of_a_tenant_others_need_an_invitation(api: Api, setup_code: str) -> None:
    async with api.client(None) as client:
        boss = {"name": "boss", "password": PASSWORD, "tenant": "fresh", "setup_code": setup_code}
        first = await client.post("/v1/auth/register", json=boss)
        assert first.json()["user"]["roles"] == ["requester", "reviewer", "admin"]
        client.cookies.clear()
        asked = {"name": "second", "roles": ["requester"]}
        token = (await client.post("/v1/team/invitations", json=asked, headers=bearer(first))).json()["invitation"]
        given = {"name": "second", "password": PASSWORD, "tenant": "fresh", "invitation": token}
        wrong = await client.post("/v1/auth/register", json={**given, "name": "third"})
        assert refusal(wrong) == (403, "invitation_invalid"), "it is for its person alone"
        second = await client.post("/v1/auth/register", json={**given, "role": "admin", "roles": ["admin"]})
        assert (second.status_code, second.json()["user"]["roles"]) == (201, ["requester"]), "no role of the request"
        again = await client.post("/v1/auth/register", json=given)
        assert refusal(again) == (403, "invitation_invalid"), "it is used once"
        unfit = ({"name": "x", "password": "short"}, {"name": "Not A Name", "password": PASSWORD}, {"name": "x"})
        assert [(await client.post("/v1/auth/register", json=body)).status_code for body in unfit] == [422] * 3
        client.cookies.clear()
        named = await client.patch("/v1/auth/me", json={"display_name": "S", "role": "admin"}, headers=bearer(second))
        assert (named.json()["display_name"], named.json()["roles"]) == ("S", ["requester"])


async def test_a_wrong_password_an_unknown_name_and_another_tenant_are_answered_alike(api: Api, ann: str) -> None:
    async with api.client(None) as client:
        tries: list[dict[str, str]] = [
            {"name": ann, "password": "wrong password"}, {"name": "nobody", "password": PASSWORD},
            {"name": ann, "password": PASSWORD, "tenant": "fresh"},
            {"name": ann, "password": PASSWORD, "tenant": "not-there"}, {"name": "admin", "password": PASSWORD},
        ]  # fmt: skip
        answers = [await client.post("/v1/auth/login", json=body) for body in tries]
        assert {refusal(answer) for answer in answers} == {(401, "sign_in_failed")}
        assert len({answer.json()["error"]["message"] for answer in answers}) == 1
        assert not any("set-cookie" in answer.headers for answer in answers)
        for body in ({}, {"name": ann}, {"token": "t", "name": ann, "password": "p" * 10}):
            assert (await client.post("/v1/auth/login", json=body)).status_code == 422


async def test_an_access_token_works_in_the_header_until_its_session_ends(api: Api, ann: str) -> None:
    async with api.client(None) as client:
        answer = await signed_in(client, ann)
        assert (answer.status_code, answer.json()["token_type"], answer.json()["expires_in"]) == (200, "Bearer", 900)
        assert answer.headers["cache-control"] == "no-store"
        client.cookies.clear()
        head = bearer(answer)
        me = await client.get("/v1/auth/me", headers=head)
        assert (me.json()["name"], me.json()["roles"]) == (ann, ["requester", "reviewer"])
        assert (await client.post("/v1/auth/logout", headers=head)).status_code == 200
        assert refusal(await client.get("/v1/auth/me", headers=head)) == (401, "session_over")
        unfit = ("", "x", "prt.local.short", "prt.LOCAL." + "a" * 43, "prt.other." + "a" * 43)
        for token in (answer.json()["refresh_token"], *unfit):
            refreshed = await client.post("/v1/auth/refresh", json={"refresh_token": token})
            assert refusal(refreshed) == (401, "refresh_token_invalid"), token


async def test_sixty_bad_tokens_are_all_refused(api: Api, ann: str) -> None:
    async with api.client(None) as client:
        good = (await signed_in(client, ann)).json()["access_token"]
        cookie = client.cookies["perdure_session"]
        client.cookies.clear()
        bad = dict(bad_tokens(good, api.services.tokens.keys.newest))
        assert len(bad) >= 60
        bad["a browser's, in the header"] = cookie
        taken = []
        for what, token in bad.items():
            answer = await client.get("/v1/auth/me", headers={"Authorization": f"Bearer {token}"})
            if refusal(answer) not in ((401, "token_invalid"), (401, "session_over")):
                taken.append((what, answer.status_code))
        assert not taken
        head = {"Cookie": f"perdure_session={good}"}
        assert (await client.get("/v1/auth/me", headers=head)).status_code == 401, "nor the other way round"
        assert (await client.get("/v1/auth/me", headers={"Authorization": f"Bearer {good}"})).status_code == 200


async def test_a_token_of_the_previous_signing_key_stays_valid(api: Api, ann: str) -> None:
    async with api.client(None) as client:
        good = (await signed_in(client, ann)).json()["access_token"]
    tokens = api.services.tokens
    newer = type(tokens)(tokens.keys.of("a newer key of more than thirty-two characters," + "x" * 32))
    both = type(tokens)(type(tokens.keys)((*newer.keys.keys, *tokens.keys.keys)))
    now = datetime.now(UTC)
    assert both.session_of(good, Audience.HEADER, now) == decode_token(good)[1]["sid"]
    assert both.session_of(good, Audience.HEADER, now + timedelta(seconds=900 + 25))
    for reader, at in ((newer, now), (both, now + timedelta(seconds=900 + 35))):
        with pytest.raises(TokenRefused):
            reader.session_of(good, Audience.HEADER, at)


async def test_fifty_simultaneous_refreshes_of_one_token_return_one_successor(api: Api, ann: str) -> None:
    async with api.client(None) as client:
        token = (await signed_in(client, ann)).json()["refresh_token"]
        asked = [client.post("/v1/auth/refresh", json={"refresh_token": token}) for _ in range(50)]
        answers = await asyncio.gather(*asked)
        assert {answer.status_code for answer in answers} == {200}
        (successor,) = {answer.json()["refresh_token"] for answer in answers}
        assert successor != token
        client.cookies.clear()
        assert (await client.get("/v1/auth/me", headers=bearer(answers[7]))).status_code == 200
        following = await client.post("/v1/auth/refresh", json={"refresh_token": successor})
        assert following.status_code == 200 and following.json()["refresh_token"] not in (token, successor)
    kept = str([dict(row) for row in await api.rows("SELECT * FROM refresh_tokens")])
    assert token not in kept and successor not in kept, "only hashes are stored"


async def test_a_refresh_token_that_is_used_again_after_the_grace_ends_the_session(api: Api, ann: str) -> None:
    async with api.client(None) as client:
        first = await signed_in(client, ann)
        client.cookies.clear()
        token, session = first.json()["refresh_token"], decode_token(first.json()["access_token"])[1]["sid"]
        await api.write("UPDATE sessions SET began_at = now() - interval '89 days 23 hours' WHERE id = $1", session)
        second = await client.post("/v1/auth/refresh", json={"refresh_token": token})
        left = datetime.fromisoformat(second.json()["refresh_expires_at"]) - datetime.now(UTC)
        assert timedelta(minutes=55) < left < timedelta(minutes=61), "ninety days in all, however often it is refreshed"
        used = "UPDATE refresh_tokens SET used_at = used_at - interval '11 seconds' WHERE token_sha256 = $1"
        await api.write(used, sha256_hex(token))
        stolen = await client.post("/v1/auth/refresh", json={"refresh_token": token})
        assert refusal(stolen) == (401, "refresh_token_reused")
        for answer in (first, second):
            assert (await client.get("/v1/auth/me", headers=bearer(answer))).status_code == 401
        heir = await client.post("/v1/auth/refresh", json={"refresh_token": second.json()["refresh_token"]})
        assert refusal(heir) == (401, "refresh_token_invalid")
    kinds = await api.rows("SELECT kind FROM audit WHERE subject = $1 ORDER BY id", session)
    assert [row["kind"] for row in kinds] == ["session.begun", "session.ended"]


async def test_an_invited_user_sets_a_password_with_the_form_and_is_signed_in(api: Api) -> None:
    name = f"cleo-{new_id()[-8:]}"
    async with api.client("admin") as admin, api.client(None) as client:
        invitation = (await admin.post("/v1/team/invitations", json={"name": name})).json()["invitation"]
        given = {"name": name, "password": "short", "invitation": invitation, "next": "/chat"}
        eve = {"name": "eve", "password": PASSWORD}
        for more, failed in (({}, "registration_invalid"), (eve, "invitation_invalid")):
            back = httpx.URL((await client.post("/sign-in", data={**given, **more})).headers["location"])
            assert (back.params["failed"], back.params["invitation"]) == (failed, invitation)
            assert "password" not in back.params
        entered = await client.post("/sign-in", data={**given, "password": PASSWORD})
        assert (entered.status_code, entered.headers["location"]) == (303, "/chat")
        assert (await client.get("/v1/auth/me")).json()["name"] == name


async def test_a_form_that_fails_comes_back_with_the_reason_and_without_the_password(api: Api) -> None:
    tries: list[tuple[dict[str, str], str]] = [
        ({"name": "nobody", "password": "wrong"}, "sign_in_failed"),
        ({"token": "x"}, "token_invalid"),
        ({}, "sign_in_failed"),
    ]
    async with api.client(None) as client:
        for given, failed in tries:
            answer = await client.post("/sign-in", data={**given, "next": "//evil.test"})
            where = httpx.URL(answer.headers["location"])
            assert (answer.status_code, where.path) == (303, "/sign-in")
            assert dict(where.params) == {"failed": failed, "next": "/review", "name": given.get("name", "")}


async def test_a_form_of_another_site_changes_nothing(api: Api, ann: str) -> None:
    async with api.client(None) as client:
        await signed_in(client, ann)
        form_token = (await client.get("/v1/auth/me")).json()["form_token"]
        foreign = {"Origin": "https://evil.test"}
        tries: list[tuple[dict[str, str], str]] = [
            ({}, "csrf_missing"),
            ({"Origin": api.url}, "csrf_missing"),
            ({**foreign, **OURS}, "foreign_origin"),
            ({"Sec-Fetch-Site": "cross-site", **OURS}, "foreign_origin"),
        ]
        for head, expected in tries:
            answer = await client.patch("/v1/auth/me", json={"display_name": "Eve"}, headers=head)
            assert refusal(answer) == (403, expected)
        forms: list[tuple[dict[str, str], dict[str, str], str]] = [
            ({}, {}, "csrf_missing"),
            ({"csrf": "guessed"}, {"Origin": api.url}, "csrf_missing"),
            ({"csrf": form_token}, foreign, "foreign_origin"),
        ]
        for data, head, expected in forms:
            assert refusal(await client.post("/sign-out", data=data, headers={**FORM, **head})) == (403, expected)
        planted = await client.post("/sign-in", data={"name": ann, "password": PASSWORD}, headers=foreign)
        assert refusal(planted) == (403, "foreign_origin"), "nor sign a user in"
        assert (await client.get("/v1/auth/me")).json()["name"] == ann, "still signed in"
        changed = await client.patch("/v1/auth/me", json={"display_name": "Ann"}, headers={**OURS, "Origin": api.url})
        assert changed.json()["display_name"] == "Ann"
        out = await client.post("/sign-out", data={"csrf": form_token}, headers={"Origin": api.url})
        assert (out.status_code, out.headers["location"]) == (303, "/sign-in")
        assert [name for name in client.cookies if not name.startswith("perdure_device_")] == []
        over = await client.get("/v1/auth/me", headers={"Cookie": "perdure_session=eyJ.a.b"})
        assert over.status_code == 401 and "max-age=0" in over.headers["set-cookie"].lower(), "the cookie is cleared"


async def test_a_changed_password_ends_other_sessions_and_voids_the_old_password(api: Api, ann: str) -> None:
    async with api.client(None) as client:
        here, there = bearer(await signed_in(client, ann)), bearer(await signed_in(client, ann))
        client.cookies.clear()
        wrong = await client.post("/v1/auth/password", json={"password": "a new one", "current": "x"}, headers=here)
        assert refusal(wrong) == (403, "password_wrong")
        given = {"password": "a new password", "current": PASSWORD}
        assert (await client.post("/v1/auth/password", json=given, headers=here)).json()["sessions_ended"] >= 1
        assert [(await client.get("/v1/auth/me", headers=head)).status_code for head in (here, there)] == [200, 401]
        assert (await signed_in(client, ann)).status_code == 401
        new = await client.post("/v1/auth/login", json={"name": ann, "password": "a new password"})
        assert new.status_code == 200


async def test_role_changes_and_removals_apply_to_the_next_request(api: Api, ann: str) -> None:
    async with api.client(None) as client, api.client("admin") as admin:
        head = bearer(await signed_in(client, ann))
        client.cookies.clear()
        await admin.patch(f"/v1/team/{ann}", json={"roles": ["requester"]})
        assert (await client.get("/v1/auth/me", headers=head)).json()["roles"] == ["requester"]
        assert (await admin.delete(f"/v1/team/{ann}")).status_code == 200
        assert (await client.get("/v1/auth/me", headers=head)).status_code == 401
        assert (await signed_in(client, ann)).status_code == 401


@pytest.fixture
async def local_api(api: Api) -> AsyncIterator[Api]:
    before = api.app.state.services
    api.app.state.services = replace(before, local=True)
    yield api
    api.app.state.services = before


async def new_code(api: Api, name: str = "requester") -> str:
    async with api.client(name) as client:
        answer = await client.post(CODES)
    assert answer.status_code == 201 and answer.headers["cache-control"] == "no-store", answer.text
    return str(answer.json()["code"])


async def entered(api: Api, code: str, **given: object) -> httpx.Response:
    async with api.client(None) as client:
        return await client.post("/sign-in", data={"code": code, "next": "/chat"}, **given)  # type: ignore[arg-type]


def refused(answer: httpx.Response) -> bool:
    where = httpx.URL(answer.headers["location"])
    told = (where.path, where.params.get("failed")) == ("/sign-in", "code_invalid")
    return told and "set-cookie" not in answer.headers


async def test_a_code_signs_one_browser_in_as_the_user_who_requested_it(local_api: Api) -> None:
    code = await new_code(local_api)
    answer = await entered(local_api, code, headers={"Origin": local_api.url})
    assert (answer.status_code, answer.headers["location"]) == (303, "/chat")
    async with local_api.client(None) as client:
        cookie = answer.headers["set-cookie"].partition(";")[0]
        me = (await client.get("/v1/auth/me", headers={"Cookie": cookie})).json()
        assert (me["name"], me["roles"]) == ("requester", ["requester"]) and me["form_token"]
        again = await client.post(CODES, headers={"Cookie": cookie, "X-Perdure-Request": "1"})
        assert refusal(again) == (403, "codes_are_local"), "a browser makes no other"
    assert refused(await entered(local_api, code)), "it is used up"


async def test_an_expired_guessed_or_foreign_code_is_refused(local_api: Api) -> None:
    code = await new_code(local_api)
    tenant, _, secret = code.partition(".")
    for guess in (f"{tenant}.{'x' * 32}", f"nobody.{secret}", secret, code + "x", "'; --", "." * 500):
        assert refused(await entered(local_api, guess)), guess
    assert (await entered(local_api, code, headers={"Origin": "https://elsewhere.example"})).status_code == 403
    port = httpx.URL(local_api.url).port
    assert (await entered(local_api, code, headers={"Host": f"leads-here.example:{port}"})).status_code == 421
    for name in ("X-Forwarded-For", "Forwarded", "Via"):
        through_proxy = await entered(local_api, code, headers={name: "127.0.0.1"})
        assert refused(through_proxy), "a proxy of this machine brings people of others"
    await local_api.write("UPDATE sign_in_codes SET expires_at = now()")
    assert refused(await entered(local_api, code))
    await new_code(local_api)
    kept = await local_api.value("SELECT count(*) FROM sign_in_codes")
    assert kept == 1, "those that are over go with the next one"


async def test_only_the_stack_of_one_machine_gives_sign_in_codes(api: Api, local_api: Api) -> None:
    code = await new_code(local_api)
    api.app.state.services = replace(api.app.state.services, local=False)
    assert refused(await entered(api, code))
    async with api.client("reviewer") as client:
        answer = await client.post(CODES)
    assert refusal(answer) == (403, "codes_are_local")
    async with api.client(None) as client:
        assert (await client.post(CODES)).status_code == 401
        ways = await client.get("/v1/auth/ways")
    none = {"oidc": False, "open_registration": False, "setup_code": False, "setup_code_ended": None}
    assert (ways.status_code, ways.json()) == (200, none)


@pytest.fixture(scope="module")
async def apis(parts: DataParts, urls: Urls, people: dict[str, Person]) -> AsyncIterator[TwoApis]:
    async with two_apis(parts, urls, people) as running:
        yield running


class Account:
    """A person with a password, and the places that this person or a stranger signs in from."""

    def __init__(self, apis: TwoApis, name: str) -> None:
        self.two, self.name = apis, name
        self.address = f"127.{randrange(1, 250)}.{randrange(1, 250)}.{randrange(1, 250)}"

    async def sign_in(
        self, password: str, client: httpx.AsyncClient | None = None, *, name: str = "", address: str = ""
    ) -> httpx.Response:
        """From a browser that keeps its cookies, or from a program at some loopback address."""
        body = {"name": name or self.name, "password": password}
        if client is not None:
            return await client.post("/v1/auth/login", json=body)
        transport = httpx.AsyncHTTPTransport(local_address=address or self.address)
        async with httpx.AsyncClient(base_url=self.two.one.url, transport=transport, timeout=30) as program:
            return await program.post("/v1/auth/login", json=body)

    async def wrong(self, times: int, **where: str) -> Counter[tuple[int, str]]:
        answers = [await self.sign_in(WRONG, **where) for _ in range(times)]  # type: ignore[arg-type]
        return Counter(refusal(answer) for answer in answers)

    async def stop_the_clock(self) -> None:
        """A full delay is left at each count from now on, however long the machine takes."""
        await self._set_last_guess(2.0**33)

    async def let_the_delay_pass(self) -> None:
        await self._set_last_guess(1.0)

    async def _set_last_guess(self, seconds: float) -> None:
        valkey = self.two.one.services.valkey.client
        async for key in valkey.scan_iter("perdure:guesses:*"):
            await valkey.hset(key, "last", seconds)


@pytest.fixture
async def owner(apis: TwoApis) -> Account:
    return Account(apis, await invited(apis.one, "reviewer"))


def delayed(answer: httpx.Response) -> int:
    assert refusal(answer) == (429, "sign_in_delayed")
    assert "set-cookie" not in answer.headers
    return int(answer.headers["retry-after"])


async def test_repeated_wrong_passwords_delay_even_the_right_one(owner: Account) -> None:
    assert await owner.wrong(PLACE.free_guesses) == {(401, "sign_in_failed"): PLACE.free_guesses}
    await owner.stop_the_clock()
    assert delayed(await owner.sign_in(WRONG)) == 1
    assert delayed(await owner.sign_in(PASSWORD)) == 1, "or a guesser would know"
    await owner.let_the_delay_pass()
    assert (await owner.sign_in(WRONG)).status_code == 401
    await owner.stop_the_clock()
    assert delayed(await owner.sign_in(WRONG)) == 2
    here = httpx.AsyncHTTPTransport(local_address=owner.address)
    async with httpx.AsyncClient(base_url=owner.two.other.url, transport=here, timeout=30) as client:
        assert delayed(await owner.sign_in(PASSWORD, client)) == 2, "every process counts with the others"


async def test_an_unknown_user_name_is_delayed_like_a_known_one(owner: Account) -> None:
    for name in (owner.name, f"nobody-{new_id()[-8:]}"):
        wrong = await owner.wrong(PLACE.free_guesses, name=name, address="127.0.0.9")
        assert wrong == {(401, "sign_in_failed"): PLACE.free_guesses}
        await owner.stop_the_clock()
        assert [delayed(await owner.sign_in(WRONG, name=name, address="127.0.0.9")) for _ in range(2)] == [1, 1]


async def test_simultaneous_guesses_get_no_further_than_successive_ones(owner: Account) -> None:
    began = time.monotonic()
    answers = await asyncio.gather(*(owner.sign_in(WRONG, address="127.0.0.7") for _ in range(40)))
    seen = Counter(answer.status_code for answer in answers)
    # The delays are 1, 2, 4 s and so on: of the guesses after the free ones, so many came after theirs.
    late = int(math.log2(time.monotonic() - began + 1))
    assert seen[401] <= PLACE.free_guesses + 1 + late and seen[401] + seen[429] == 40


async def test_guesses_from_elsewhere_never_delay_a_known_device(owner: Account) -> None:
    async with owner.two.one.client(None) as browser:
        assert (await owner.sign_in(PASSWORD, browser)).status_code == 200
        (device,) = [cookie for cookie in browser.cookies.jar if cookie.name.startswith("perdure_device_")]
        assert device.has_nonstandard_attr("HttpOnly") and "strict" in str(device.__dict__).lower()
        browser.cookies.delete("perdure_session")
        for place in range(ACCOUNT.free_guesses // PLACE.free_guesses + 2):
            await owner.wrong(PLACE.free_guesses, address=f"127.0.1.{place + 1}")
        await owner.stop_the_clock()
        delayed(await owner.sign_in(PASSWORD, address="127.0.2.1"))
        for _ in range(DEVICE.free_guesses + 2):
            assert (await owner.sign_in(PASSWORD, browser)).status_code == 200
        wrong = [(await owner.sign_in(WRONG, browser)).status_code for _ in range(DEVICE.free_guesses)]
        assert wrong == [401] * DEVICE.free_guesses
        await owner.stop_the_clock()
        assert delayed(await owner.sign_in(PASSWORD, browser)) == 1, "it has a counter of its own"
        await owner.let_the_delay_pass()
        assert (await owner.sign_in(PASSWORD, browser)).status_code == 200
        assert (await owner.sign_in(PASSWORD, browser)).status_code == 200, "the right one ends the count"


async def test_one_address_that_guesses_at_many_accounts_is_delayed_at_all_of_them(owner: Account) -> None:
    """And what many people share is forgotten an hour after the first mistake, however many follow."""
    codes = [(await owner.sign_in(WRONG, name=f"n{index}")).status_code for index in range(ADDRESS.free_guesses + 1)]
    assert codes[:-1] == [401] * ADDRESS.free_guesses
    await owner.stop_the_clock()
    delayed(await owner.sign_in(PASSWORD))
    client = owner.two.one.services.valkey.client
    lasts = {}
    for pace, of in ((ADDRESS, owner.address), (PLACE, f"local/n1/{owner.address}")):
        lasts[pace] = await client.ttl(f"perdure:guesses:{pace.name}:{sha256_hex(of)[:32]}")
    assert 0 < lasts[ADDRESS] <= 3_600 < lasts[PLACE] <= 86_400


async def test_a_forged_or_foreign_device_is_an_unknown_one(owner: Account) -> None:
    async with owner.two.one.client(None) as browser, owner.two.one.client(None) as forger:
        await owner.sign_in(PASSWORD, browser)
        (device,) = [cookie for cookie in browser.cookies.jar if cookie.name.startswith("perdure_device_")]
        assert device.value is not None
        name, until, seal = device.value.split(".")
        await owner.wrong(PLACE.free_guesses + 1, address="127.0.0.1")
        await owner.stop_the_clock()
        forged = (f"{name}x.{until}.{seal}", f"{name}.{int(until) + 1}.{seal}", f"{name}.{until}.x", "x", "..", ".0.")
        for value in forged:
            forger.cookies.set(device.name, value)
            delayed(await owner.sign_in(PASSWORD, forger))
        other = Account(owner.two, "reviewer")
        forger.cookies.set(device.name, device.value)
        assert (await owner.sign_in(PASSWORD, forger)).status_code == 200, "whole, it is the device"
        assert (await other.sign_in(WRONG, forger)).status_code in (401, 429)


async def test_a_session_cannot_guess_its_users_password_either(owner: Account) -> None:
    answer = await owner.sign_in(PASSWORD)
    async with owner.two.one.client(None) as client:
        client.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"
        body = {"password": "another good one", "current": WRONG}
        seen = [await client.post("/v1/auth/password", json=body) for _ in range(DEVICE.free_guesses + 1)]
        assert [each.status_code for each in seen] == [403] * DEVICE.free_guesses + [429]
        right = await client.post("/v1/auth/password", json={**body, "current": PASSWORD})
        assert refusal(right) == (429, "sign_in_delayed")


async def test_weak_passwords_are_refused_wherever_one_is_set(owner: Account) -> None:
    session = (await owner.sign_in(PASSWORD)).json()["access_token"]
    name = f"carla.mendez-{new_id()[-4:]}"
    async with owner.two.one.client("admin") as admin, owner.two.one.client(None) as client:
        made = await admin.post("/v1/team/invitations", json={"name": name, "display_name": "Xaviera Quillfeather"})
        for weak in ("password1", "Carla.Mendez", "xaviera1", "local1234"):
            given = {"name": name, "password": weak, "invitation": made.json()["invitation"]}
            assert refusal(await client.post("/v1/auth/register", json=given)) == (422, "password_weak"), weak
            form = await client.post("/sign-in", data=given)
            assert httpx.URL(form.headers["location"]).params["failed"] == "password_weak"
        body, head = {"password": "Trustno1", "current": PASSWORD}, {"Authorization": f"Bearer {session}"}
        refused = await client.post("/v1/auth/password", json=body, headers=head)
        assert refusal(refused) == (422, "password_weak")
        assert refused.json()["error"]["details"] == {"field": "password"}
        stranger = {"name": "eve", "password": "password1"}
        assert code(await client.post("/v1/auth/register", json=stranger)) != "password_weak", "nothing is computed"
        long = "🐙 any character, " * 11
        taken = await client.post("/v1/auth/register", json={**given, "password": long})
        assert taken.status_code == 201, "up to 200 characters"
        assert (await client.post("/v1/auth/login", json={"name": name, "password": long})).status_code == 200


async def test_without_valkey_each_process_counts_guesses_alone(owner: Account) -> None:
    apis = owner.two
    async with apis.one.client(None) as browser:
        assert (await owner.sign_in(PASSWORD, browser)).status_code == 200
        await apis.valkey.cut()
        try:
            assert (await owner.wrong(PLACE.free_guesses + 2))[(429, "sign_in_delayed")] == 2
            assert (await owner.sign_in(PASSWORD, browser)).status_code == 200, "a known device gets in"
        finally:
            await apis.valkey.mend()
