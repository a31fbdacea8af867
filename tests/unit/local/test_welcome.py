"""The block that `perdure up` prints once everything is ready: values in, text out."""

from pathlib import Path

from perdure.local.config import PAGES
from perdure.local.welcome import Welcome, no_app

BLOCK = """\
Ready in 9.7 s.

Open first: here you chat with the agents, as the requester.
  Chat as requester    http://127.0.0.1:8080/sign-in?code=local.a

Open when a turn waits for an approval: the reviewer decides on it. The same browser can hold both.
  Review as reviewer   http://localhost:8080/sign-in?code=local.b

A link signs the browser in once, within 15 minutes. A command in another terminal prints a new one.
  Chat again           bin/perdure link requester
  Review again         bin/perdure link reviewer

On the command line, in another terminal:
  agents               bin/perdure agents list
  chat                 bin/perdure chat AGENT
  approvals            bin/perdure approvals list

Addresses:
  API                  http://127.0.0.1:8080
  API docs             http://127.0.0.1:8080/docs
  Temporal UI          http://127.0.0.1:9

Tokens, only for scripts that call the API (`Authorization: Bearer TOKEN`): the requester starts
turns, the reviewer decides on approvals, the admin also manages users, rules and budgets.
  requester token      perdure_requester_x
  reviewer token       perdure_reviewer_y
  admin token          perdure_admin_z

Setup code, only for accounts with a password: the first person registers with the setup code at
http://127.0.0.1:8080/sign-in, once, within 24 hours, and becomes the administrator.
  setup code           ABCD-EFGH

Files:
  data                 /data
  logs                 /data/logs (one file for each part)

Agents:
  the app x is left out:
    a -> b -> a

Ctrl-C stops everything; the data stays."""


def test_the_block_is_in_the_order_of_need() -> None:
    api = "http://127.0.0.1:8080"
    addresses = (f"{api}/sign-in?code=local.a", "http://localhost:8080/sign-in?code=local.b", f"{api}/docs")
    welcome = Welcome(
        seconds=9.71,
        home=Path("/data"),
        logs=Path("/data/logs"),
        command="bin/perdure",
        api=api,
        pages=list(zip(PAGES, addresses, strict=True)),
        temporal_ui="http://127.0.0.1:9",
        tokens={
            role: f"perdure_{role}_{end}" for role, end in zip(("requester", "reviewer", "admin"), "xyz", strict=True)
        },
        setup_code="ABCD-EFGH",
        left_out=["the app x is left out:", "  a -> b -> a"],
    )
    assert welcome.text() == BLOCK


def test_a_start_without_an_app_names_the_command_as_it_is_called() -> None:
    assert no_app("bin/perdure", {}) == (
        "No agent is published: no app was asked for. Stop this stack and start it with one:",
        "  bin/perdure up --examples                                the examples that ship",
        "  bin/perdure init my-app && bin/perdure up --app my-app   an app of your own",
    )


def test_a_start_without_an_app_says_what_stays_published_and_that_its_calls_wait() -> None:
    assert no_app("perdure", {"filings": ("rule_32", "rule_37"), "refunds": ("refunds",)}) == (
        "No app was asked for: nothing was published, and nothing was withdrawn. These stay published:",
        "  filings (rule_32, rule_37)",
        "  refunds (refunds)",
        "Their apps are not loaded: calls of their tools wait until they are. Stop this stack and start it with them:",
        "  perdure up --examples   the examples that ship",
        "  perdure up --app DIR   the app in DIR; all agents of other apps are withdrawn",
    )
