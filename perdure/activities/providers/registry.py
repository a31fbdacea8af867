"""The providers of agents' models, and the models' parameters with secrets resolved.

LiteLLM takes seconds and 200 MB to import. The worker that first needs a real model imports it on a thread, because the
event loop must continue to send heartbeats.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from itertools import product

import structlog
from pydantic import JsonValue

from perdure.activities.providers.errors import problem_of
from perdure.activities.providers.provider import Complete, Provider, ProviderRequest
from perdure.activities.providers.scripted import ScriptedProvider, read_script
from perdure.contracts.agents import SCRIPTED, PublishedAgent
from perdure.contracts.errors import PerdureError, UpstreamRejected
from perdure.core.agents.models import is_ambiguous, params_of
from perdure.core.agents.tool_rules import UnsentTool, unsent_sentences, unsent_tools
from perdure.core.budgets import caps_of, hold_of
from perdure.core.egress import Outbound
from perdure.graph.registry import loads_toolsets

_log = structlog.get_logger(__name__)
SecretOf = Callable[[str], str | None]
NO_NAMED_HOSTS = Outbound()
CHECK_SECONDS = 20.0
"""Time limit of each model's answer."""
_SET_IT = "; set PERDURE_SECRET_ and its name in capitals for the workers that call models"
_CHECK_MESSAGE: dict[str, JsonValue] = {"role": "user", "content": "Answer with one word: ready."}


class Models:
    """The providers of one process."""

    def __init__(self, secret_of: SecretOf, outbound: Outbound = NO_NAMED_HOSTS) -> None:
        self._secret_of = secret_of
        self._outbound = outbound
        self._litellm: Provider | None = None
        self._importing = asyncio.Lock()
        self._scripted: dict[str, Provider] = {}
        self._warned: set[tuple[str, tuple[UnsentTool, ...]]] = set()

    async def provider(self, agent: PublishedAgent, model: str = "") -> Provider:
        """Returns the provider of `model`, else of this agent's own model. A script is read once per version.

        Raises: CallerError `bad_script`.
        """
        if (model or agent.definition.model) == SCRIPTED:
            if agent.version not in self._scripted:
                self._scripted[agent.version] = ScriptedProvider(read_script(agent.definition.script))
            return self._scripted[agent.version]
        async with self._importing:
            if self._litellm is None:
                self._litellm = await asyncio.to_thread(_import_litellm, self._outbound)
        return self._litellm

    async def ensure_imported(self, agent: PublishedAgent) -> None:
        """Imports the packages of this agent's models, once per process. It takes seconds, so hold no lock or
        transaction in the meantime."""
        for model in _real_models(agent):
            await self.provider(agent, model)

    async def preload(self, agents: Sequence[PublishedAgent]) -> None:
        """Imports the packages of these agents' models before the worker serves, so that the first call does not wait.

        Logs a warning for a missing secret, and for tools that a model is not sent. Another one is for a daily limit
        under which a model cannot be called, because its price or bound is unknown. Otherwise only turns would show it.
        """
        for agent in agents:
            if is_ambiguous(agent.definition.reasoning):
                _log.warning("reasoning_set_twice", agent=agent.definition.id, counts="budget_tokens")
            unsent = unsent_tools(agent, loads_toolsets=loads_toolsets(agent.definition.topology))
            self.warn_of_unsent(agent, tuple(unsent))
            if agent.definition.model != SCRIPTED:
                self._warn_of_secrets(agent)
            for model in _real_models(agent):
                self._check_bounds(agent, model, await self.provider(agent, model))

    def warn_of_unsent(self, agent: PublishedAgent, unsent: tuple[UnsentTool, ...]) -> None:
        """Logs a warning for tools that a model is not sent, once for each version of the agent and set of tools."""
        if unsent and (agent.version, unsent) not in self._warned:
            self._warned.add((agent.version, unsent))
            for problem in unsent_sentences(unsent):
                _log.warning("tools_not_sent", agent=agent.definition.id, problem=problem)

    def _check_bounds(self, agent: PublishedAgent, model: str, provider: Provider) -> None:
        caps = caps_of(agent.definition, None)
        try:
            hold_of(caps, provider.upper_bound(_empty_request(agent, model)), model)
        except UpstreamRejected as error:
            _log.warning("day_limit_cannot_hold", agent=agent.definition.id, code=error.code, problem=error.message)

    def params(self, agent: PublishedAgent, stage: str = "", *, on_fallback: bool = False) -> Mapping[str, JsonValue]:
        """Returns the parameters of a call of this stage to the agent's model, or to its fallback model.
        `api_key_secret` names a secret, which becomes `api_key` here.

        If that secret does not exist, LiteLLM would send the environment's key to any address in the parameters.

        Raises: UpstreamRejected `model_setup` if it does not exist.
        """
        params = dict(params_of(agent.definition, stage, on_fallback=on_fallback))
        name = params.pop("api_key_secret", None)
        if name is None:
            return params
        key = self._secret_of(name) if isinstance(name, str) else None
        if not key:
            owner = "agent's fallback model" if on_fallback else "agent's model"
            raise UpstreamRejected("model_setup", f"The secret {str(name)[:64]} of the {owner} is not set{_SET_IT}.")
        return {**params, "api_key": key}

    def _warn_of_secrets(self, agent: PublishedAgent) -> None:
        """Logs a warning for each missing secret of the agent's models. Otherwise only turns would show it."""
        problems = dict[str, None]()
        for stage, on_fallback in product(("", *agent.definition.stages), (False, True)):
            try:
                if not on_fallback or agent.definition.second_model:
                    self.params(agent, stage, on_fallback=on_fallback)
            except UpstreamRejected as error:
                problems[error.message] = None
        for problem in problems:
            _log.warning("model_secret_not_set", agent=agent.definition.id, problem=problem)


def _empty_request(agent: PublishedAgent, model: str) -> ProviderRequest:
    """Returns a request of the agent without messages."""
    on_fallback = model == agent.definition.second_model != agent.definition.model
    params = params_of(agent.definition, "", on_fallback=on_fallback)
    return ProviderRequest(model, (), params=params, reasoning=agent.definition.reasoning)


def _real_models(agent: PublishedAgent) -> list[str]:
    named = (agent.definition.model, agent.definition.second_model)
    return [model for model in named if model not in ("", SCRIPTED)]


def _import_litellm(outbound: Outbound) -> Provider:
    from perdure.activities.providers.litellm_provider import LiteLLMProvider

    return LiteLLMProvider(outbound)


async def first_that_answers(models: Sequence[str], provider: Provider, params: Mapping[str, JsonValue]) -> str:
    """Returns the first of `models` that answers.

    Raises: SystemExit, with the reason for each model.
    """
    failures = []
    for model in models:
        failure = await _failure(
            ProviderRequest(model, (_CHECK_MESSAGE,), params=params, timeout_seconds=CHECK_SECONDS), provider
        )
        if not failure:
            return model
        failures.append(f"{model}: {failure}")
    raise SystemExit(f"No model in PERDURE_MODELS answers, so nothing was started. {'; '.join(failures)}")


async def _failure(request: ProviderRequest, provider: Provider) -> str:
    try:
        async with aclosing(provider.stream(request)) as chunks:
            async for chunk in chunks:
                if isinstance(chunk, Complete):
                    return ""
    except PerdureError as error:
        said = problem_of(error, request.model).details.get("sentence")
        return f"{error.code}, {error.message}" + (f" The provider answered: {said}" if said else "")
    return "the answer was empty"
