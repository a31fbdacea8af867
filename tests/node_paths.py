"""Every turn that the workers of a module have run took a path of its manifest, whatever its test was about."""

import asyncpg

from perdure.core.events.traces import alarms_of
from perdure.graph.registry import TOPOLOGIES
from perdure.worker.telemetry import edges_of

EDGES = {one.name: edges_of(one) for one in TOPOLOGIES}
ENDED_NODES = """
SELECT t.topology, t.id::text AS turn_id, array_agg(e.data ->> 'node' ORDER BY e.seq) AS nodes
FROM turns t JOIN events e ON e.turn_id = t.id AND e.kind = 'node_end'
WHERE t.routing ->> 'turns' = $1 GROUP BY t.id
"""
"""The turns of one queue with their nodes, in the order in which they ended."""


def assert_paths(rows: list[asyncpg.Record]) -> None:
    for row in rows:
        off = [alarm.model_dump() for alarm in alarms_of(row["nodes"], EDGES[row["topology"]], row["turn_id"])]
        assert not off, (row["topology"], row["nodes"], off)
