"""Agents that say what they are told to, each at a pace of its own, and a stack that has them."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import yaml

from tests.acceptance.running import ROOT, RunningStack, running

MANY_TURNS = {"PERDURE_LIVE_TURNS_PER_USER": "1000000"}
READY_SECONDS = 150.0


def write_speakers(folder: Path, paces: Mapping[str, float]) -> None:
    """An app with an agent for each pace, in tokens a second; `/echo TEXT` makes it say the text."""
    (folder / "agents").mkdir(parents=True)
    (folder / "scripts").mkdir()
    (folder / "app.yaml").write_text("name: speakers\ntitle: Agents that say what they are told to\n")
    for name, tokens_per_second in paces.items():
        script = {"tokens_per_second": tokens_per_second, "rules": [], "fallback": "Say /echo and a text."}
        (folder / "scripts" / f"{name}.yaml").write_text(yaml.safe_dump(script))
        agent = {"id": name, "title": name, "topology": "skill_pipeline", "model": "scripted", "core_tools": False}
        (folder / "agents" / f"{name}.yaml").write_text(
            yaml.safe_dump({**agent, "script": f"../scripts/{name}.yaml", "limits": {"max_tokens": 1_000_000}})
        )


@contextmanager
def speaking(folder: Path, paces: Mapping[str, float], **environ: str) -> Iterator[RunningStack]:
    """A stack with these agents, in a data folder below `folder`."""
    write_speakers(folder / "app", paces)
    with running(folder / "home", "--app", str(folder / "app"), **MANY_TURNS, **environ) as stack:
        yield stack


@contextmanager
def no_model_worker(stack: RunningStack) -> Iterator[None]:
    """Calls of models wait until the block ends, so that those of many turns begin at the same time."""
    with stack.alone():
        stack.kill("worker-llm")
        yield


@contextmanager
def more_model_workers(stack: RunningStack, count: int) -> Iterator[None]:
    """So many workers of the model's queue beside the stack's own, which has a hundred calls at once at most."""
    run = stack.read()
    environ = {
        **psutil.Process(stack.process.pid).environ(),
        "DATABASE_URL": run["postgres"],
        "REDIS_URL": run["redis"],
        "TEMPORAL_ADDRESS": run["temporal"],
        "TEMPORAL_CONFIG_FILE": os.devnull,
        "PERDURE_LOCAL": "1",
    }
    started: list[subprocess.Popen[bytes]] = []
    ready = [stack.home / f"more-{number}.ready" for number in range(count)]
    try:
        for file in ready:
            started.append(
                subprocess.Popen(
                    [sys.executable, "worker.py", "--queues", "llm"],
                    cwd=ROOT,
                    env={**environ, "PERDURE_READY_FILE": str(file)},
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
        deadline = time.monotonic() + READY_SECONDS
        while not all(file.exists() for file in ready):
            assert time.monotonic() < deadline, "the workers did not come up"
            time.sleep(0.1)
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def words(count: int, name: str) -> str:
    """A text of so many words, none like another, so that one lost or doubled is seen."""
    return " ".join(f"{name}-{number}" for number in range(count))
