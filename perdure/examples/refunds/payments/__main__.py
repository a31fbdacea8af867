"""Run the payments service, from the app's folder: `python -m payments --port N --db FILE`.

As an app service of the embedded stack it reads its port from PAYMENTS_PORT and its folder from
PERDURE_COMPANION_HOME. The token is PERDURE_SECRET_PAYMENTS_TOKEN, the variable that the tools worker also reads.
Without it, a random token is created and stored in the file `token` next to the database.
"""

import argparse
import logging
import os
import secrets
import sys
from pathlib import Path

import uvicorn

from .faults import Faults
from .ledger import Ledger
from .service import build


def main() -> int:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="payments", description="A fictional payments service that counts its effects."
    )
    parser.add_argument("--port", type=int, default=os.environ.get("PAYMENTS_PORT"), help="port on 127.0.0.1")
    folder = os.environ.get("PERDURE_COMPANION_HOME")
    parser.add_argument("--db", type=Path, default=Path(folder) / "payments.db" if folder else None, help="SQLite file")
    options = parser.parse_args()
    if options.port is None or options.db is None:
        parser.error("set --port and --db, or PAYMENTS_PORT and PERDURE_COMPANION_HOME")
    logging.basicConfig(format="%(message)s", stream=sys.stdout)
    logging.getLogger("payments").setLevel(logging.INFO)
    token = os.environ.get("PERDURE_SECRET_PAYMENTS_TOKEN") or _stored_token(options.db.parent / "token")
    app = build(Ledger(options.db), Faults(), token)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            host="127.0.0.1",
            port=options.port,
            log_level="warning",
            lifespan="off",
            timeout_graceful_shutdown=2,
        )
    )
    server.run()
    return 0 if server.started else 1


def _stored_token(path: Path) -> str:
    """The token in `path`, made at the first start; readable by its owner only."""
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32))
    return path.read_text().strip()


if __name__ == "__main__":
    sys.exit(main())
