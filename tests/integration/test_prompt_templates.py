"""Prompt templates over HTTP: whose draft speaks to whom, who moves a version on, and who comes second."""

import asyncio

import httpx
import pytest

from perdure.contracts.errors import CallerError
from perdure.core.agents.templates import Stage
from perdure.store import agents
from perdure.store.agents import Mover, Seer
from perdure.store.database import new_id
from tests.integration.conftest import Api
from tests.integration.test_api_turns import code

OTHER = "other"


def fresh() -> str:
    """A template that nobody has used yet."""
    return f"t{new_id().replace('-', '')}"


async def drafted(client: httpx.AsyncClient, template: str, text: str) -> dict[str, str]:
    answer = await client.put(f"/v1/prompt-templates/{template}/draft", json={"text": text})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def moved(client: httpx.AsyncClient, version: dict[str, str], to: str) -> httpx.Response:
    body = {"to": to, "digest": version["digest"]}
    return await client.post(f"/v1/prompt-versions/{version['id']}/promote", json=body)


async def activated(api: Api, template: str, text: str) -> dict[str, str]:
    """A version that has come all the way, by two people."""
    async with api.client("reviewer") as author, api.client("admin") as other:
        version = await drafted(author, template, text)
        for to in ("pre_production", "active"):
            answer = await moved(other, version, to)
            assert (answer.status_code, answer.json()["stage"]) == (200, to)
    return version


async def speaks(client: httpx.AsyncClient, template: str) -> str | None:
    answer = await client.get(f"/v1/prompt-templates/{template}")
    if answer.status_code == 404:
        assert code(answer) == "prompt_template_not_found"
        return None
    return str(answer.json()["text"])


async def test_a_version_goes_from_draft_to_the_archive_and_speaks_to_those_it_should(api: Api) -> None:
    template = fresh()
    async with api.client() as author, api.client("reviewer") as reviewer:
        first = await drafted(author, template, "First.")
        assert (await speaks(author, template), await speaks(reviewer, template)) == ("First.", None)
        assert (await moved(reviewer, first, "pre_production")).status_code == 200
        assert (await speaks(author, template), await speaks(reviewer, template)) == (None, None)
        waits = (await author.get(f"/v1/prompt-templates/{template}", params={"stage": "pre_production"})).json()
        assert waits["text"] == "First."
        assert (await moved(reviewer, first, "active")).status_code == 200
        assert (await speaks(author, template), await speaks(reviewer, template)) == ("First.", "First.")
        second = await drafted(author, template, "Second.")
        assert (await speaks(author, template), await speaks(reviewer, template)) == ("Second.", "First.")
        for to in ("pre_production", "active"):
            assert (await moved(reviewer, second, to)).status_code == 200
        assert await speaks(reviewer, template) == "Second."
        shown = (await reviewer.get(f"/v1/prompt-versions/{first['id']}")).json()
        assert shown["stage"] == "archived"
        what = [entry["what"] for entry in shown["history"]]
        assert what == ["prompt.draft_saved", "prompt.promoted", "prompt.promoted", "prompt.archived"]
        assert shown["history"][-1]["data"]["for"] == second["id"]
        assert (await reviewer.post(f"/v1/prompt-versions/{second['id']}/archive")).status_code == 200
        assert await speaks(reviewer, template) is None


async def test_each_user_has_one_draft_and_saving_it_again_overwrites_it(api: Api) -> None:
    template = fresh()
    async with api.client() as author, api.client("admin") as other:
        first, again = await drafted(author, template, "a"), await drafted(author, template, "b")
        assert first["id"] == again["id"] and again["text"] == "b"
        assert (await drafted(other, template, "c"))["id"] != first["id"]
        saved = await drafted(author, template, "b")
        assert len((await author.get(f"/v1/prompt-versions/{saved['id']}")).json()["history"]) == 2, "nothing is new"
        mine = (await author.get("/v1/prompt-templates", params={"template": template})).json()["items"]
        assert [item["author"] for item in mine] == ["requester"], "another one's draft is not shown to a requester"
        every = (await other.get("/v1/prompt-templates", params={"template": template})).json()["items"]
        assert {item["author"] for item in every} == {"requester", "admin"}
        assert all("text" not in item for item in every)


async def test_many_who_save_at_once_leave_one_draft(api: Api) -> None:
    template = fresh()
    async with api.client() as author:
        saved = await asyncio.gather(*(drafted(author, template, f"text {number}") for number in range(10)))
        assert len({each["id"] for each in saved}) == 1
        assert len((await author.get("/v1/prompt-templates", params={"template": template})).json()["items"]) == 1


@pytest.mark.parametrize("to", ["pre_production", "active"])
async def test_of_many_who_promote_one_does_and_the_others_are_told(api: Api, to: str) -> None:
    template = fresh()
    await activated(api, template, "Old.")
    async with api.client() as author, api.client("reviewer") as one, api.client("admin") as two:
        version = await drafted(author, template, "New.")
        if to == "active":
            await moved(one, version, "pre_production")
        answers = await asyncio.gather(*(moved(each, version, to) for _ in range(6) for each in (one, two)))
        assert sorted(answer.status_code for answer in answers) == [200] + [409] * 11
        lost = next(answer for answer in answers if answer.status_code == 409)
        assert (code(lost), lost.json()["error"]["details"]["stage"]) == ("prompt_stage_changed", to)
        found = (await one.get("/v1/prompt-templates", params={"template": template, "stage": "active"})).json()[
            "items"
        ]
        assert len(found) == 1
        assert found[0]["id"] == version["id"] or to == "pre_production"
        history = (await one.get(f"/v1/prompt-versions/{version['id']}")).json()["history"]
        assert [entry["what"] for entry in history].count("prompt.promoted") == (1 if to == "pre_production" else 2)


async def test_a_draft_that_changed_since_it_was_read_is_not_promoted(api: Api) -> None:
    template = fresh()
    async with api.client() as author, api.client("reviewer") as reviewer:
        read = await drafted(author, template, "Harmless.")
        await drafted(author, template, "Something else.")
        answer = await moved(reviewer, read, "pre_production")
        assert (answer.status_code, code(answer)) == (409, "prompt_text_changed")
        assert (await reviewer.get(f"/v1/prompt-versions/{read['id']}")).json()["stage"] == "draft"


async def test_nobody_activates_the_own_words_alone_whatever_the_role(api: Api) -> None:
    template = fresh()
    await activated(api, template, "Ours.")
    async with api.client("admin") as author, api.client("reviewer") as other, api.client() as reader:
        version = await drafted(author, template, "Mine alone.")
        early = await moved(other, version, "active")
        assert (early.status_code, code(early)) == (409, "prompt_stage_changed"), "not without pre-production"
        assert (await moved(author, version, "pre_production")).status_code == 200
        refused = await moved(author, version, "active")
        assert (refused.status_code, code(refused)) == (403, "own_draft")
        assert await speaks(reader, template) == "Ours.", "what was active has not gone with the attempt"
        assert (await moved(other, version, "active")).status_code == 200
        assert await speaks(reader, template) == "Mine alone."


async def test_a_second_version_does_not_enter_pre_production_beside_the_first(api: Api) -> None:
    template = fresh()
    async with api.client("reviewer") as one, api.client("admin") as two:
        first, second = await drafted(one, template, "One."), await drafted(two, template, "Two.")
        assert (await moved(one, first, "pre_production")).status_code == 200
        answer = await moved(two, second, "pre_production")
        assert (answer.status_code, code(answer)) == (409, "prompt_stage_taken")
        assert (await one.post(f"/v1/prompt-versions/{first['id']}/archive")).status_code == 200
        assert (await moved(two, second, "pre_production")).status_code == 200


async def test_a_requester_drafts_and_drops_the_own_draft_but_moves_nothing_on(api: Api) -> None:
    template = fresh()
    active = await activated(api, template, "Ours.")
    async with api.client() as client, api.client("admin") as other:
        mine, theirs = await drafted(client, template, "Mine."), await drafted(other, template, "Theirs.")
        for version, path, expected in (
            (mine, "promote", (403, "role_required")),
            (active, "archive", (403, "role_required")),
            (theirs, "archive", (404, "prompt_version_not_found")),
        ):
            body = {"to": "pre_production", "digest": version["digest"]} if path == "promote" else None
            answer = await client.post(f"/v1/prompt-versions/{version['id']}/{path}", json=body)
            assert (answer.status_code, code(answer)) == expected
        assert (await client.post(f"/v1/prompt-versions/{mine['id']}/archive")).status_code == 200
        again = await client.post(f"/v1/prompt-versions/{mine['id']}/archive")
        assert again.status_code in (403, 409), "it is archived, and no draft any more"
        assert await speaks(client, template) == "Ours."


async def test_a_text_is_rendered_for_who_asks_and_only_once(api: Api) -> None:
    template = fresh()
    await activated(api, template, "{{agent_title}} serves {{user_name}} ({{user_role}}){{skill_name}}.")
    async with api.client() as client:
        given = {"agent_title": "{{user_role}}"}
        shown = (await client.get(f"/v1/prompt-templates/{template}/render", params=given)).json()
        me = (await client.get("/v1/auth/me")).json()
    assert shown["text"].startswith("{{user_role}} serves ") and f"({me['roles'][0]})." in shown["text"]


async def test_an_unknown_variable_is_refused_with_its_place_and_nothing_is_saved(api: Api) -> None:
    template = fresh()
    async with api.client() as client:
        text = {"text": "Dear {{user_name}},\n{{user_pasword}}"}
        answer = await client.put(f"/v1/prompt-templates/{template}/draft", json=text)
        assert (answer.status_code, code(answer)) == (422, "template_variable_unknown")
        assert answer.json()["error"]["details"]["unknown"] == [{"line": 2, "name": "user_pasword"}]
        assert await speaks(client, template) is None


async def test_promoting_with_a_key_is_answered_again_as_before(api: Api) -> None:
    template = fresh()
    async with api.client("reviewer") as client:
        version = await drafted(client, template, "Once.")
        body = {"to": "pre_production", "digest": version["digest"]}
        path, key = f"/v1/prompt-versions/{version['id']}/promote", {"Idempotency-Key": template}
        first, again = [await client.post(path, json=body, headers=key) for _ in range(2)]
        assert (first.status_code, again.status_code) == (200, 200) and first.json() == again.json()


async def test_the_list_is_paged_without_a_gap(api: Api) -> None:
    template = fresh()
    made = {(await activated(api, template, f"Number {number}."))["id"] for number in range(3)}
    seen: list[str] = []
    async with api.client("admin") as client:
        cursor: str | None = None
        while True:
            query = {"template": template, "limit": "2", **({"cursor": cursor} if cursor else {})}
            page = (await client.get("/v1/prompt-templates", params=query)).json()
            seen += [item["id"] for item in page["items"]]
            cursor = page["next"]
            if cursor is None:
                break
    assert len(seen) == len(set(seen)) and set(seen) == made


async def test_another_tenant_sees_none_of_it_and_has_templates_of_its_own(api: Api) -> None:
    template = fresh()
    version = await activated(api, template, "Ours.")
    stranger = Mover(api.people["requester"].user_id, frozenset({"admin"}))
    async with api.services.db.transaction(OTHER) as tx:
        found, _ = await agents.list_prompt_templates(tx, Seer(*stranger), template, None, 50, None)
        assert found == []
        for refused in (
            agents.get_prompt_template(tx, version["id"], Seer(*stranger)),
            agents.resolved_prompt_template(tx, template, stranger.user_id),
            agents.promote_prompt_template(tx, version["id"], Stage.ACTIVE, version["digest"], stranger),
            agents.archive_prompt_template(tx, version["id"], stranger),
        ):
            with pytest.raises(CallerError) as caught:
                await refused
            assert caught.value.http == 404
    async with api.client() as client:
        assert await speaks(client, template) == "Ours."


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "/v1/prompt-templates/Bad-Key/draft", {"text": "x"}, 422),
        ("PUT", "/v1/prompt-templates/ok/draft", {"text": " \n"}, 422),
        ("PUT", "/v1/prompt-templates/ok/draft", {"text": "x" * 60_000}, 422),
        ("PUT", "/v1/prompt-templates/ok/draft", {"text": "x", "stage": "active"}, 422),
        ("PUT", "/v1/prompt-templates/ok/draft", {}, 422),
        ("GET", "/v1/prompt-templates?stage=sideways", None, 422),
        ("GET", "/v1/prompt-templates?cursor=x", None, 422),
        ("GET", "/v1/prompt-templates/nothing", None, 404),
        ("GET", "/v1/prompt-templates/x?stage=archived", None, 422),
        ("GET", "/v1/prompt-versions/x", None, 404),
        ("POST", "/v1/prompt-versions/x/promote", {"to": "active", "digest": "d"}, 404),
        ("POST", f"/v1/prompt-versions/{new_id()}/promote", {"to": "archived", "digest": "d"}, 422),
        ("POST", f"/v1/prompt-versions/{new_id()}/promote", {"to": "active"}, 422),
        ("POST", f"/v1/prompt-versions/{new_id()}/archive", None, 404),
    ],
)
async def test_bad_input_is_a_typed_4xx(api: Api, method: str, path: str, body: object, status: int) -> None:
    async with api.client("admin") as client:
        answer = await client.request(method, path, json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["code"]
