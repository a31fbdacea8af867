"""Runs the cluster's MCP server, or shows its changes: `python -m cluster`.

- `python -m cluster` serves on standard input and output (stdio).
- `python -m cluster http --port 9000` serves streamable HTTP on 127.0.0.1, at /mcp.
- `python -m cluster effects` prints the changes that were made to the cluster, as JSON.
- `python -m cluster fault hang --tool k8s_pods_list` makes the next such call fail; `fault clear` deletes all faults.

The cluster is kept in CLUSTER_HOME, else in PERDURE_MCP_HOME, else in the current folder. Over HTTP a bearer token
is required if CLUSTER_TOKEN is set.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from .faults import Fault, FaultKind
from .server import ClusterServer, folder_of_environment


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="cluster", description="A simulated cluster behind an MCP server.")
    parser.add_argument("--home", type=Path, default=folder_of_environment(), help="the folder of the cluster's file")
    verbs = parser.add_subparsers(dest="verb")
    http = verbs.add_parser("http", help="serve streamable HTTP")
    http.add_argument("--port", type=int, required=True)
    verbs.add_parser("effects", help="show what was done")
    fault = verbs.add_parser("fault", help="make the next call fail")
    fault.add_argument("kind", choices=[*FaultKind, "clear"])
    fault.add_argument("--tool", default="")
    fault.add_argument("--when", choices=("before", "after"), default="after")
    fault.add_argument("--seconds", type=float, default=30.0)
    fault.add_argument("--times", type=int, default=1)
    options = parser.parse_args()
    server = ClusterServer(options.home)
    if options.verb == "effects":
        json.dump(server.shared.state.effects(), sys.stdout, indent=1)
    elif options.verb == "fault" and options.kind == "clear":
        server.shared.faults.clear()
    elif options.verb == "fault":
        server.shared.faults.arm(
            Fault(FaultKind(options.kind), options.tool, options.when, options.seconds, options.times)
        )
    elif options.verb == "http":
        from .web import serve

        return serve(server, options.port, os.environ.get("CLUSTER_TOKEN", ""))
    else:
        server.run("stdio")
    return 0


if __name__ == "__main__":
    sys.exit(main())
