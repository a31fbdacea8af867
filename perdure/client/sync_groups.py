"""The calls of the blocking client by subject: each method sends what a function of `*_calls.py` makes."""

from typing import TYPE_CHECKING

from perdure.client import (
    auth_calls,
    catalogue_calls,
    delegation_calls,
    effect_calls,
    file_calls,
    prompt_calls,
    review_calls,
    status_calls,
    team_calls,
    webhook_calls,
)

if TYPE_CHECKING:
    from perdure.client.sync import Client


class Auth:
    """Who the caller is."""

    def __init__(self, client: "Client") -> None:
        self.me = client.method(auth_calls.who_am_i)
        self.ways = client.method(auth_calls.ways_in)
        self.code = client.method(auth_calls.new_code)
        self.register = client.method(auth_calls.register)


class Approvals:
    """What waits for a reviewer."""

    def __init__(self, client: "Client") -> None:
        self.list = client.method(review_calls.list_approvals)
        self.get = client.method(review_calls.get_approval)
        self.preview = client.method(review_calls.preview)
        self.counts = client.method(review_calls.count_approvals)
        self.decided = client.method(review_calls.list_decided)
        self.decide = client.method(review_calls.decide)
        self.decide_many = client.method(review_calls.decide_many)
        self.withdraw = client.method(review_calls.withdraw)
        self.claim = client.method(review_calls.claim)
        self.release = client.method(review_calls.release)
        self.reassign = client.method(review_calls.reassign)
        self.escalate = client.method(review_calls.escalate)
        self.ageing = client.method(review_calls.ageing)
        self.audit = client.method(review_calls.audit_of)


class Delegations:
    """Who decides in the caller's place."""

    def __init__(self, client: "Client") -> None:
        self.list = client.method(delegation_calls.list_delegations)
        self.add = client.method(delegation_calls.add_delegation)
        self.remove = client.method(delegation_calls.remove_delegation)


class Files:
    """What a conversation was given, and what its turns made."""

    def __init__(self, client: "Client") -> None:
        self.upload = client.method(file_calls.upload_file)
        self.list = client.method(file_calls.list_files)
        self.read = client.method(file_calls.read_file)
        self.delete = client.method(file_calls.delete_file)
        self.usage = client.method(file_calls.usage)


class Effects:
    """What a crash left unknown."""

    def __init__(self, client: "Client") -> None:
        self.list = client.method(effect_calls.list_effects)
        self.get = client.method(effect_calls.get_effect)
        self.settle = client.method(effect_calls.settle_effect)


class Agents:
    """What a conversation can be held with."""

    def __init__(self, client: "Client") -> None:
        self.list = client.method(catalogue_calls.list_agents)
        self.get = client.method(catalogue_calls.get_agent)
        self.tools = client.method(catalogue_calls.list_tools)


class Topologies:
    """The graphs that agents run on."""

    def __init__(self, client: "Client") -> None:
        self.list = client.method(catalogue_calls.list_topologies)
        self.get = client.method(catalogue_calls.get_topology)
        self.drawing = client.method(catalogue_calls.topology_drawing)


class Users:
    """Who has access."""

    def __init__(self, client: "Client") -> None:
        self.list = client.method(catalogue_calls.list_users)
        self.add = client.method(catalogue_calls.add_user)
        self.new_token = client.method(catalogue_calls.new_token)
        self.set_roles = client.method(catalogue_calls.set_roles)


class Budgets:
    """What a day may cost."""

    def __init__(self, client: "Client") -> None:
        self.get = client.method(catalogue_calls.get_budgets)
        self.set = client.method(catalogue_calls.set_budgets)


class Rules:
    """What stops a turn, or asks a person."""

    def __init__(self, client: "Client") -> None:
        self.list = client.method(catalogue_calls.list_rules)
        self.set = client.method(catalogue_calls.set_rule)
        self.tools = client.method(catalogue_calls.list_waivable_tools)
        self.set_tool = client.method(catalogue_calls.set_tool_approval)


class Prompts:
    """Prompt templates and their stages."""

    def __init__(self, client: "Client") -> None:
        self.list = client.method(prompt_calls.list_prompts)
        self.get = client.method(prompt_calls.get_prompt)
        self.render = client.method(prompt_calls.render_prompt)
        self.version = client.method(prompt_calls.get_prompt_version)
        self.save_draft = client.method(prompt_calls.save_draft)
        self.promote = client.method(prompt_calls.promote_prompt)
        self.archive = client.method(prompt_calls.archive_prompt)


class Status:
    """How the deployment is."""

    def __init__(self, client: "Client") -> None:
        self.get = client.method(status_calls.get_status)


class Team:
    """The people of the tenant."""

    def __init__(self, client: "Client") -> None:
        self.list = client.method(team_calls.list_team)
        self.invite = client.method(team_calls.invite)
        self.invite_again = client.method(team_calls.invite_again)
        self.close = client.method(team_calls.close)
        self.reopen = client.method(team_calls.reopen)


class Webhooks:
    """Where notices go."""

    def __init__(self, client: "Client") -> None:
        self.list = client.method(webhook_calls.list_webhooks)
        self.add = client.method(webhook_calls.add_webhook)
        self.remove = client.method(webhook_calls.remove_webhook)
