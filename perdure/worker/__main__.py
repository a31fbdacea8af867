"""A worker process: `python worker.py --queues turns,llm` serves task queues, `python worker.py --relay` delivers wake
signals and reconciles turns. SIGTERM drains: no new work is accepted, and open calls have 30 s.

Only serving imports what it needs (perdure/worker/queues.py): the imports take seconds of CPU, which the relay saves.
"""

import argparse
import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

import uvloop

from perdure.contracts.turns import Kind, TurnAddress, TurnStatus
from perdure.core.audit import Keyring
from perdure.egress.httpx_transport import guard
from perdure.embedding.choice import embedder_of
from perdure.settings import Settings, log_from, needed, secret
from perdure.store.database import Database, reach_postgres
from perdure.telemetry.hangs import watched
from perdure.telemetry.heartbeat import wait_for_gate
from perdure.temporal.client import connect, register_search_attributes
from perdure.temporal.workflow_client import Notifier
from perdure.worker.audit_heads import HeadExport
from perdure.worker.embeddings import run_embedding
from perdure.worker.outbox import run_relay
from perdure.worker.reconcile import Reconciler
from perdure.worker.webhooks import WebhookEgress, WebhookSender, run_deliveries

if TYPE_CHECKING:
    from perdure.telemetry.traces import TurnTraces


def main() -> None:
    """Parses the arguments, runs, and exits without the interpreter's own shutdown, in which Temporal's core may
    crash (temporalio/sdk-python#300)."""
    parser = argparse.ArgumentParser(description=__doc__)
    mode = parser.add_mutually_exclusive_group(required=True)
    kinds = ", ".join(kind.value for kind in Kind)
    mode.add_argument("--queues", help=f"task queues to serve, comma-separated: {kinds}")
    mode.add_argument("--relay", action="store_true", help="deliver wake-ups and reconcile turns")
    options = parser.parse_args()
    names = [name for name in (options.queues or "").split(",") if name]
    unknown = set(names) - {kind.value for kind in Kind}
    if unknown or not (names or options.relay):
        parser.error(f"unknown queue {', '.join(sorted(unknown))}; available queues: {kinds}")
    try:
        settings = Settings.read()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop if settings.uvloop else None) as runner:
            code = runner.run(_relay(settings) if options.relay else _serve(settings, names))
    except KeyboardInterrupt:
        code = 130
    except SystemExit as error:
        sys.stderr.write(f"{error}\n")
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def _serve(settings: Settings, names: list[str]) -> int:
    from perdure.worker.queues import serve

    log_from(settings.log_level)
    wait_for_gate(settings.start_gate)
    await serve(settings, [Kind(name) for name in names], _stop_on_signals())
    return 0


async def _connect_relay(settings: Settings, keyring: Keyring) -> Database:
    return await Database.connect(
        needed(settings.database_relay_url, "DATABASE_RELAY_URL"),
        max_connections=4,
        application="perdure-relay",
        statement_cache=settings.statement_cache,
        keyring=keyring,
    )


async def _relay(settings: Settings) -> int:
    log_from(settings.log_level)
    wait_for_gate(settings.start_gate)
    keyring = settings.keyring()
    async with AsyncExitStack() as stack:
        relay = await reach_postgres("DATABASE_RELAY_URL", _connect_relay(settings, keyring))
        stack.push_async_callback(relay.close)
        from perdure.telemetry.metrics import metrics_addresses, serve_metrics
        from perdure.worker.telemetry import ENDED

        own_metrics, sdk_metrics = metrics_addresses(settings.metrics_port, settings.metrics_host, "relay")
        serve_metrics(own_metrics)
        client = await connect(sdk_metrics)
        await register_search_attributes(client)
        notifier = Notifier(client, relay)
        traces = _traces(settings, relay, stack)

        def ended(address: TurnAddress) -> None:
            ENDED.labels(status=TurnStatus.FAILED.value).inc()
            if traces is not None:
                traces.ended(address)

        stop = _stop_on_signals()
        await stack.enter_async_context(watched(settings.ready_file, settings.exit_seconds()))
        heads = HeadExport(relay, settings.writable_heads_file(), keyring)
        reconciler = Reconciler(relay, client, notifier, ended, settings.stuck_after)
        jobs = [run_relay(relay, notifier, stop), reconciler.run(stop), heads.run(stop)]
        if settings.webhook_hosts:
            sender = WebhookSender(WebhookEgress(settings.webhook_hosts, settings.webhook_private))
            jobs.append(run_deliveries(relay, sender, settings.link_base_url(), stop))
        guard_litellm = partial(guard, outbound=settings.outbound_to_providers())
        embedder = embedder_of(settings.embeddings, settings.embeddings_base, secret("embeddings"), guard=guard_litellm)
        if embedder is not None:
            jobs.append(run_embedding(relay, embedder, stop))
        await asyncio.gather(*jobs)
    return 0


def _traces(settings: Settings, relay: Database, stack: AsyncExitStack) -> "TurnTraces | None":
    """Returns the traces of the turns that the reconciler ends. Without a tracer, returns None and imports nothing."""
    if settings.tracer in ("", "noop"):
        return None
    from perdure.graph.registry import TOPOLOGIES
    from perdure.worker.telemetry import tracer_of, traces_of

    traces = traces_of(tracer_of(settings.tracer, settings.trace_endpoint, secret("tracer")), relay, TOPOLOGIES)
    stack.push_async_callback(traces.close)
    return traces


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    return stop


if __name__ == "__main__":
    main()
