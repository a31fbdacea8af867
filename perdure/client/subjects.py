"""The methods that both clients have, by subject. Each sends the `Call` that a function of its subject builds."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Generic, ParamSpec, Self, TypeVar, overload

from perdure.client import agents, approvals, calls, identity, turns
from perdure.client import delivery as webhook_calls
from perdure.client import status as status_calls
from perdure.client.requests import Call

if TYPE_CHECKING:
    from perdure.client.asynchronous import AsyncClient
    from perdure.client.sync import Client

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")


class Subject(Generic[C]):
    """The methods of a client for one subject."""

    def __init__(self, client: C) -> None:
        self.client = client


class Method(Generic[P, T]):
    """A method that sends the calls that `make` builds. With the blocking client it returns the response, with the
    asynchronous one a coroutine."""

    def __init__(self, make: Callable[P, Call[T]]) -> None:
        self._make = make

    @overload
    def __get__(self, subject: Subject["Client"], owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, subject: Subject["AsyncClient"], owner: type) -> Callable[P, Awaitable[T]]: ...
    @overload
    def __get__(self, subject: None, owner: type) -> Self: ...
    def __get__(
        self, subject: Subject["Client"] | Subject["AsyncClient"] | None, owner: type
    ) -> Callable[P, T] | Callable[P, Awaitable[T]] | Self:
        return self if subject is None else subject.client.method(self._make)


class Auth(Subject[C]):
    """The caller, sign-in methods and registration."""

    me = Method(identity.get_me)
    ways = Method(identity.get_sign_in_methods)
    code = Method(identity.create_sign_in_code)
    register = Method(identity.register)


class Approvals(Subject[C]):
    """Approval requests and the decisions on them."""

    list = Method(approvals.list_approvals)
    get = Method(approvals.get_approval)
    preview = Method(approvals.preview)
    counts = Method(approvals.count_approvals)
    decided = Method(approvals.list_decided)
    decide = Method(approvals.decide)
    decide_many = Method(approvals.decide_many)
    withdraw = Method(approvals.withdraw)
    claim = Method(approvals.claim)
    release = Method(approvals.release)
    reassign = Method(approvals.reassign)
    reissue = Method(approvals.reissue)
    escalate = Method(approvals.escalate)
    ageing = Method(approvals.ageing)
    audit = Method(approvals.list_audit)


class Delegations(Subject[C]):
    """Delegations of the caller's decisions to other users."""

    list = Method(approvals.list_delegations)
    add = Method(approvals.add_delegation)
    remove = Method(approvals.remove_delegation)


class Files(Subject[C]):
    """Files of conversations: uploaded by users or created by turns."""

    upload = Method(turns.upload_file)
    list = Method(turns.list_files)
    read = Method(turns.read_file)
    delete = Method(turns.delete_file)
    usage = Method(turns.usage)


class Effects(Subject[C]):
    """Effects whose outcome is unknown after a crash."""

    list = Method(calls.list_effects)
    get = Method(calls.get_effect)
    settle = Method(calls.settle_effect)


class Agents(Subject[C]):
    """Agents and their tools."""

    list = Method(agents.list_agents)
    get = Method(agents.get_agent)
    tools = Method(agents.list_tools)


class Topologies(Subject[C]):
    """Topologies: the graphs that agents run on."""

    list = Method(agents.list_topologies)
    get = Method(agents.get_topology)
    drawing = Method(agents.topology_drawing)


class Users(Subject[C]):
    """Users, their roles and their tokens."""

    list = Method(agents.list_users)
    add = Method(agents.add_user)
    new_token = Method(agents.new_token)
    set_roles = Method(agents.set_roles)


class Budgets(Subject[C]):
    """Daily budgets."""

    get = Method(agents.get_budgets)
    set = Method(agents.set_budgets)


class Rules(Subject[C]):
    """Rules, and the tools that a tenant can exempt from approval."""

    list = Method(agents.list_rules)
    set = Method(agents.set_rule)
    tools = Method(agents.list_exemptible_tools)
    set_tool = Method(agents.set_tool_approval)
    four_eyes = Method(agents.get_four_eyes)
    set_four_eyes = Method(agents.set_four_eyes)


class Prompts(Subject[C]):
    """Prompt templates and their stages."""

    list = Method(agents.list_prompts)
    get = Method(agents.get_prompt)
    render = Method(agents.render_prompt)
    version = Method(agents.get_prompt_version)
    save_draft = Method(agents.save_draft)
    promote = Method(agents.promote_prompt)
    archive = Method(agents.archive_prompt)


class Status(Subject[C]):
    """The status of the deployment."""

    get = Method(status_calls.get_status)


class Team(Subject[C]):
    """The user accounts of the tenant, for its administrators."""

    list = Method(identity.list_team)
    invite = Method(identity.invite)
    invite_again = Method(identity.invite_again)
    close = Method(identity.close)
    reopen = Method(identity.reopen)


class Webhooks(Subject[C]):
    """Webhooks for approval events."""

    list = Method(webhook_calls.list_webhooks)
    add = Method(webhook_calls.add_webhook)
    remove = Method(webhook_calls.remove_webhook)


class ConversationCalls(Subject[C]):
    """Conversations of the caller, without their streams."""

    create = Method(turns.create_conversation)
    list = Method(turns.list_conversations)
    get = Method(turns.get_conversation)
    rename = Method(turns.rename_conversation)
    delete = Method(turns.delete_conversation)
    messages = Method(turns.list_messages)
    story = Method(turns.conversation_view)


class TurnCalls(Subject[C]):
    """Turns, without their streams. A start that is retried starts one turn only."""

    start = Method(turns.start_turn)
    execute = Method(turns.execute)
    get = Method(turns.get_turn)
    list = Method(turns.list_turns)
    segments = Method(turns.turn_segments)
    metrics = Method(turns.turn_metrics)
    calls = Method(turns.list_calls)
    stop = Method(turns.stop_turn)
    question = Method(turns.get_question)
    answer = Method(turns.answer_question)
    raise_limits = Method(turns.raise_limits)


class Subjects:
    """The subjects of a client that need no stream."""

    def __init__(self: Self) -> None:
        self.auth: Auth[Self] = Auth(self)
        self.approvals: Approvals[Self] = Approvals(self)
        self.delegations: Delegations[Self] = Delegations(self)
        self.effects: Effects[Self] = Effects(self)
        self.files: Files[Self] = Files(self)
        self.agents: Agents[Self] = Agents(self)
        self.topologies: Topologies[Self] = Topologies(self)
        self.users: Users[Self] = Users(self)
        self.prompts: Prompts[Self] = Prompts(self)
        self.budgets: Budgets[Self] = Budgets(self)
        self.rules: Rules[Self] = Rules(self)
        self.status: Status[Self] = Status(self)
        self.team: Team[Self] = Team(self)
        self.webhooks: Webhooks[Self] = Webhooks(self)
