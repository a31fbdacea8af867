"""One run of the benchmark: start and warm up everything, then rounds over all stacks in turn, so that drift hits all
alike."""

import asyncio
import json
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.baselines.graph import make_tables
from bench.client import Client
from bench.measure import Batch, Bench
from bench.processes import Processes, running
from bench.reference import Product, Visitor, conversations, product
from bench.server import Frontend, History, history_of
from bench.stacks import Stack
from perdure.contracts.values import sha256_hex
from perdure.local import DataParts, embedded
from perdure.local.config import ROOT
from perdure.store.database import Database
from perdure.store.valkey import Valkey
from perdure.temporal.client import connect
from perdure.temporal.workflow_client import Notifier

APP = Path(__file__).parent / "app"


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of measurement."""

    rounds: int
    alone: int
    """Turns one after the other, in each round."""
    loaded: int
    """Turns with 64 in progress, in each round."""
    warm_up: int


QUICK = Plan(rounds=3, alone=15, loaded=128, warm_up=64)
FULL = Plan(rounds=7, alone=30, loaded=320, warm_up=192)


@dataclass(frozen=True, slots=True)
class Measured:
    """All measurements of one stack, round by round."""

    stack: Stack
    alone: list[Batch]
    loaded: list[Batch]
    histories: list[History]
    product: Product


async def run(plan: Plan, stacks: Sequence[Stack]) -> list[Measured]:
    """Measures these stacks.

    Raises: RuntimeError if two stacks did not leave the same product, or if a turn did not complete.
    """
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(_folder())
        data = await stack.enter_async_context(embedded(folder / "home"))
        environ = _environ(data)
        visitor_token = await _bootstrap(data, environ, folder)
        if not all(each.on_temporal for each in stacks) and data.postgres is not None:
            await make_tables(data.postgres.owner)
        programs = list(dict.fromkeys(program for each in stacks for program in each.programs))
        processes = await stack.enter_async_context(running(programs, folder, environ))
        os.environ.update(environ)  # this process is a client too, with the same variables
        client = await stack.enter_async_context(_client(environ, visitor_token))
        benches = {each.name: _bench(each, client, processes, data) for each in stacks}
        await _warm(plan, benches, client)
        return await _rounds(plan, stacks, benches, client)


async def _rounds(plan: Plan, stacks: Sequence[Stack], benches: Mapping[str, Bench], client: Client) -> list[Measured]:
    alone: dict[str, list[Batch]] = {each.name: [] for each in stacks}
    loaded: dict[str, list[Batch]] = {each.name: [] for each in stacks}
    for number in range(plan.rounds):
        for each in (*stacks[number % len(stacks) :], *stacks[: number % len(stacks)]):
            bench = benches[each.name]
            fresh = await conversations(client.db, client.visitor, plan.alone + plan.loaded)
            alone[each.name].append(await bench.alone(fresh[: plan.alone]))
            loaded[each.name].append(await bench.loaded(fresh[plan.alone :]))
            _say(f"round {number + 1}: {each.title}", alone[each.name][-1], loaded[each.name][-1])
    measured = []
    for each in stacks:
        products = {await product(client.db, client.visitor, turn) for turn in loaded[each.name][-1].turn_ids}
        if len(products) != 1:
            raise RuntimeError(f"turns of {each.title} differ: {products}")
        turns = [*alone[each.name][-1].turn_ids, *loaded[each.name][-1].turn_ids[:20]] if each.on_temporal else []
        histories = [await history_of(client.notifier.client, turn) for turn in turns]
        measured.append(Measured(each, alone[each.name], loaded[each.name], histories, products.pop()))
    for each_measured in measured[1:]:
        if differences := measured[0].product.differences(each_measured.product):
            raise RuntimeError(f"{each_measured.stack.title} did not leave the same: {differences}")
    return measured


async def _warm(plan: Plan, benches: Mapping[str, Bench], client: Client) -> None:
    for name, bench in benches.items():
        batch = await bench.loaded(await conversations(client.db, client.visitor, plan.warm_up))
        sys.stderr.write(f"warm: {name}, {batch.seconds:.1f} s\n")


def _bench(stack: Stack, client: Client, processes: Processes, data: DataParts) -> Bench:
    pids = data.pids()
    parts = {
        "workers": [processes.pid(program.role) for program in stack.programs],
        "postgres": [pids["postgres"]],
        "temporal": [pids["temporal"]],
        "valkey": [pids["valkey"]],
    }
    if not stack.on_temporal:
        del parts["temporal"]
    temporal = data.temporal
    frontend = None
    if stack.on_temporal and temporal is not None and temporal.metrics is not None:
        frontend = Frontend(temporal.metrics, temporal.namespace)
    return Bench(client, stack.begin(client, processes), parts, frontend)


@contextmanager
def _folder() -> Iterator[Path]:
    """Provides a folder for all files of this run. If the run fails, it is kept, because it has the logs of all
    processes."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-bench-"))
    folder.chmod(0o711)  # Postgres needs access to it as another user if this process is root
    try:
        yield folder
    except BaseException:
        sys.stderr.write(f"The logs of this run are in {folder}\n")
        raise
    shutil.rmtree(folder, ignore_errors=True)


def _environ(data: DataParts) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    return {**data.environ(kept), "PERDURE_APP": str(APP), "PERDURE_LOCAL": "1", "PYTHONUNBUFFERED": "1"} | {
        "PERDURE_EXAMPLES": "false",  # whatever `.env` contains: more agents would change the figures
        "PERDURE_AUDIT_KEY": secrets.token_hex(32),
        "JWT_SECRET": secrets.token_hex(32),
    }


async def _bootstrap(data: DataParts, environ: Mapping[str, str], folder: Path) -> str:
    """Creates the roles, the schema and the bench agent; returns the requester's token."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "perdure.apps.bootstrap",
        stdout=asyncio.subprocess.PIPE,
        env={**data.admin_environ(environ), "PERDURE_HOME": str(folder)},
        cwd=ROOT,
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError("perdure/apps/bootstrap.py failed; its message is above")
    return str(json.loads(output.splitlines()[-1])["tokens"]["requester"])


@asynccontextmanager
async def _client(environ: Mapping[str, str], token: str) -> AsyncIterator[Client]:
    db = await Database.connect(environ["DATABASE_URL"], max_connections=20, application="bench-client")
    valkey = Valkey.connect(environ["REDIS_URL"])
    try:
        row = await db.principal_row(sha256_hex(token))
        if row is None:
            raise RuntimeError("perdure/apps/bootstrap.py made no requester")
        visitor = Visitor(row["tenant_id"], str(row["user_id"]))
        async with Client.open(db, Notifier(await connect(), db), valkey, visitor) as client:
            yield client
    finally:
        await valkey.close()
        await db.close()


def _say(what: str, alone: Batch, loaded: Batch) -> None:
    sys.stderr.write(
        f"{what}: p50 {alone.p50_ms:.0f} ms, {loaded.turns_a_second:.1f} turns/s, {loaded.cpu_ms:.1f} CPU ms a turn, "
        f"others used {loaded.others_cpu_share:.0%} of the machine\n"
    )
