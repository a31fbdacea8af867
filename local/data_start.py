"""Starting each data part: found or fetched, made ready, launched; or the one that the environment names instead."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from local import postgres, postgres_cluster, temporal_server, valkey
from local.credentials import Credentials
from local.external import external_postgres, external_temporal, must_answer
from local.home import Home
from local.ports import HOST, PortBook
from local.postgres import PostgresAddress
from local.postgres_user import choose_launch
from local.supervisor import Supervisor
from local.temporal_binary import Source, find_temporal
from local.temporal_build import built
from local.temporal_download import downloaded
from local.temporal_server import TemporalAddress, TemporalPorts
from local.wheels import postgres_install, valkey_server


def temporal_sources(environ: Mapping[str, str]) -> dict[str, Source]:
    """What is asked, in this order, when no Temporal server program is there yet."""
    return {"download": downloaded(environ), "build": built(environ)}


@dataclass(frozen=True, slots=True)
class DataStart:
    """One start of the data parts."""

    supervisor: Supervisor
    home: Home
    book: PortBook
    environ: Mapping[str, str]
    credentials: Credentials
    overridable: bool
    """Whether the environment may replace a part."""
    began: float = field(default_factory=time.monotonic)

    async def postgres(self) -> PostgresAddress:
        """Back when it answers.

        Raises: StackError.
        """
        outside = external_postgres(self.environ) if self.overridable else None
        if outside is not None:
            await must_answer("DATABASE_URL", outside.app)
            self.supervisor.console.part("postgres", "yours", detail="DATABASE_URL")
            return outside
        launch = await asyncio.to_thread(choose_launch, postgres_install(), self.home.root)
        await postgres_cluster.make_ready(self.home, launch, self.credentials)
        port = self.book.take("postgres")
        await self.supervisor.launch(postgres.child_spec(self.home, launch, port), self.began)
        return postgres.address(port, self.credentials)

    async def valkey(self) -> str:
        """Its URL, when it answers.

        Raises: StackError.
        """
        outside = self.environ.get("REDIS_URL") if self.overridable else None
        if outside:
            await must_answer("REDIS_URL", outside)
            self.supervisor.console.part("valkey", "yours", detail="REDIS_URL")
            return outside
        port, password = self.book.take("valkey"), self.credentials.valkey
        await self.supervisor.launch(valkey.child_spec(self.home, valkey_server(), port, password), self.began)
        return valkey.url(port, password)

    async def temporal(
        self, known: "asyncio.Future[tuple[TemporalAddress, bool] | None]", found: asyncio.Event
    ) -> None:
        """Back when it answers. `known` gets its address, and whether it is ours, as soon as that is settled; `found`
        is set once its program is there.

        Raises: StackError.
        """
        outside = await asyncio.to_thread(external_temporal, self.environ) if self.overridable else None
        if outside is not None:
            known.set_result((outside, False))
            found.set()
            await must_answer("TEMPORAL_ADDRESS", outside.address)
            self.supervisor.console.part("temporal", "yours", detail=outside.address)
            return
        synchronous = temporal_server.synchronous_setting(self.environ)
        ports = temporal_server.take_ports(self.book)
        known.set_result((temporal_server.address(ports), True))
        program = await find_temporal(self.environ, self.supervisor.console, temporal_sources(self.environ))
        found.set()
        await self.supervisor.launch(
            temporal_server.child_spec(self.home, program.path, ports, synchronous), self.began
        )
        await self._web(program.path, ports)

    async def _web(self, program: Path, ports: TemporalPorts) -> None:
        from local.temporal_web import WebPages, backend_of  # here: h11 is not needed by other commands
        from local.web_door import WebDoor

        pages = WebPages(self.home.root / "temporal-ui", program)
        door = WebDoor(backend_of(ports.http, ports.api_host, pages))
        self.supervisor.closes += [door.close, pages.close]
        await door.open(HOST, ports.ui)


async def nothing() -> None:
    """A part that was not asked for."""
