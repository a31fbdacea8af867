"""The refunds agent with a real model: LiteLLM over HTTP to the provider double, which counts what it is asked."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from perdure.apps import SHIPPED
from tests.acceptance.running import RunningStack, running
from tests.doubles.providers.script import Call, Step
from tests.doubles.providers.server import ProviderDouble

COUNTED = "counted"
"""The agent's id."""
_KEY = "counted_model_key"
KEY_ENVIRON = {f"PERDURE_SECRET_{_KEY.upper()}": "sk-of-the-test"}
"""The credential, as the operator sets it."""


def write_app(folder: Path, api_base: str) -> None:
    """An app of one agent: the refunds agent's tools and persona, and a model at `api_base`."""
    shipped = SHIPPED / "refunds"
    shutil.copytree(shipped / "tools", folder / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    definition = yaml.safe_load((shipped / "agents" / "refunds.yaml").read_text())
    del definition["script"]
    definition |= {
        "id": COUNTED,
        "title": "Refunds, with a model that counts",
        "model": "openai/gpt-4o-mini",
        "model_params": {"api_base": api_base, "api_key_secret": _KEY},
    }
    (folder / "agents").mkdir()
    (folder / "agents" / f"{COUNTED}.yaml").write_text(yaml.safe_dump(definition))
    (folder / "app.yaml").write_text(f"name: {COUNTED}\ntitle: Refunds, with a model that counts\n")


@contextmanager
def counted_stack(folder: Path) -> Iterator[tuple[RunningStack, ProviderDouble]]:
    """A stack whose agent `counted` asks the double, in a data folder below `folder`."""
    with ProviderDouble() as double:
        write_app(folder / "app", double.api_base)
        with running(folder / "home", "--examples", "--app", str(folder / "app"), **KEY_ENVIRON) as stack:
            yield stack, double


def spoken(message: str, slow_word_seconds: float, text: str, word_seconds: float) -> tuple[Step, Step]:
    """The first request for `message` is answered so slowly that it is still speaking when it is killed."""
    exactly = f"^{message}$"
    slow = Step(match=exactly, text=text, token_seconds=slow_word_seconds)
    return slow, Step(match=exactly, text=text, token_seconds=word_seconds)


def tool_steps(message: str, tool: str, arguments: dict[str, str], answer: str) -> tuple[Step, Step]:
    """One call of a tool, then the answer; a request more than these two finds no step and is refused."""
    exactly = f"^{message}$"
    call = Call(name=tool, arguments=dict(arguments))
    return Step(match=exactly, text="I ask for it.", calls=(call,)), Step(match=exactly, text=answer)
