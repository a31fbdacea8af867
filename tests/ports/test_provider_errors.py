"""The provider's table against the real LiteLLM and openai: every class they raise means something to us."""

import importlib
import inspect
from collections.abc import Iterator

import pytest

from perdure.activities.providers.errors import PROVIDER, UNEXPECTED, provider_error


def _raised() -> Iterator[type[Exception]]:
    for name in ("openai", "litellm.exceptions"):
        for _, member in inspect.getmembers(importlib.import_module(name), inspect.isclass):
            if issubclass(member, Exception) and not issubclass(member, Warning):
                yield member


@pytest.fixture(scope="module", autouse=True)
def _litellm() -> None:
    # sets LiteLLM up before anything else imports it
    import perdure.activities.providers.litellm_provider  # noqa: F401


def test_every_exception_class_of_litellm_and_openai_means_something() -> None:
    unknown = [kind for kind in _raised() if provider_error(kind.__new__(kind)).code == UNEXPECTED.code]
    assert unknown == []
    assert len(list(_raised())) > 40


def test_every_row_of_the_table_names_a_class_that_exists() -> None:
    for name in PROVIDER:
        module, _, attribute = name.rpartition(".")
        assert issubclass(getattr(importlib.import_module(module), attribute), Exception), name


def test_litellm_is_set_up_to_ask_once_and_to_tell_nobody() -> None:
    import litellm

    importlib.import_module("litellm.llms.vertex_ai.context_caching.vertex_ai_context_caching")
    assert litellm.num_retries is None and litellm.disable_aiohttp_transport is True
    assert litellm.failure_callback == litellm.callbacks == []
    # The import above, which a call to Vertex makes too, adds LiteLLM's own cache, which is off.
    assert litellm.success_callback == ["cache"] and litellm.cache is None
