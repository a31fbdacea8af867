"""The parts that tests run on, real and started once: Postgres, Valkey and Temporal as child processes.
Each module gets its own database, copied from a migrated template."""

import asyncio
import gc
import os
import re
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import certifi
import hypothesis
import pytest
import xdist.scheduler
from hypothesis import HealthCheck

from perdure.apps.bootstrap import LOCAL_TENANT, bootstrap
from perdure.contracts.values import sha256_hex
from perdure.core.audit import Keyring
from perdure.local import DataParts, embedded, ports
from perdure.local.data_dir import load_credentials, open_home
from perdure.local.postgres import BOOTSTRAP
from perdure.settings import Settings
from perdure.store import valkey
from perdure.store.database import Database, new_id, set_up
from perdure.store.migrations import provision
from tests.scale import sized


def one_certificate() -> Path:
    """Returns a bundle of one certificate authority for the tests' HTTP clients. Each new client reads its bundle: 35
    ms of CPU for certifi's 140 authorities, 1 ms for one (measured). No test connects to a public host."""
    folder = Path(tempfile.gettempdir()) / f"perdure-tests-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    bundle = folder / "one-authority.pem"
    if not bundle.exists():
        first = Path(certifi.where()).read_text().split("-----END CERTIFICATE-----")[0]
        bundle.write_text(first[first.index("-----BEGIN") :] + "-----END CERTIFICATE-----\n")
    return bundle


# Until the tests are collected: with collections in between, each process spends 1.2 s of CPU more on them (measured).
gc.disable()
AUDIT_KEY = "the audit key of all tests and of the processes that they start"
KEYRING = Keyring.of(AUDIT_KEY)
os.environ["PERDURE_AUDIT_KEY"] = AUDIT_KEY
os.environ["JWT_SECRET"] = "the access key of all tests and of the processes that they start"
# Without it, the SDK fails a workflow task after 2 s of wall time, which a busy machine takes, and throws an exception
# into its thread, which may end in another test. A workflow that really hangs ends at its test's time limit.
os.environ["TEMPORAL_DEBUG"] = "true"
os.environ["SSL_CERT_FILE"] = str(one_certificate())
# A port that a test chooses is neither chosen by another process of the run nor by a stack that a test starts.
_FIRST_PORT = 10_000 + 1_000 * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 10)
ports.PORT_RANGE = range(_FIRST_PORT, _FIRST_PORT + 1_000)
valkey._TIMEOUT_SECONDS = 20.0  # on a busy machine, an answer that takes a second would count as none
hypothesis.settings.register_profile(
    "suite", deadline=None, derandomize=True, max_examples=sized(300, 25), suppress_health_check=[HealthCheck.too_slow]
)
hypothesis.settings.register_profile(
    "search", hypothesis.settings.get_profile("suite"), derandomize=False, max_examples=1_000
)
hypothesis.settings.load_profile("suite")
pytest_plugins = ("tests.harness", "tests.served_turns", "tests.code_blocks")
TOGETHER = (
    "tests/acceptance/(approvals|streams)/",
    "tests/acceptance/test_(blocks|charts|cli|filings|ops|ports)[.]py",
    "tests/pages/",
)
"""Patterns of test files. The files that match one run in one process because they share a stack or a browser."""
RERUNS = frozenset((Path(__file__).parent / "reruns.txt").read_text().split())
"""The tests marked `timed`. tests/repo/test_reruns.py holds that the list only shrinks."""
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def pytest_make_parametrize_id(val: object) -> str | None:
    """Cases made of new ids have the same names in every process that collects them."""
    return _UUID.sub("uuid", val) if isinstance(val, str) and _UUID.search(val) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A marked test that is on the list is run again after a failure: a busy machine can break it, never mend it."""
    for item in items:
        if item.get_closest_marker("timed") and item.nodeid.split("[", 1)[0] in RERUNS:
            item.add_marker(pytest.mark.flaky(reruns=2, reruns_delay=1))


class ByStack(xdist.scheduler.LoadFileScheduling):  # type: ignore[misc]
    """Test files in the order of collection. Those that match one pattern of `TOGETHER` stay in one process."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return next((shared for shared in TOGETHER if re.match(shared, file)), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByStack:
    """The scheduler if several processes run the tests."""
    return ByStack(config, log)


def pytest_collection_finish() -> None:
    """Imported modules are never freed: a full collection of them takes seconds, in which no workflow yields. What the
    collection of tests leaves behind is frozen with them: to look for it takes 0.7 s of CPU in each process."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def no_open_connections(request: pytest.FixtureRequest) -> Iterator[None]:
    """Some clients, such as LiteLLM's, are dropped without being closed, and the coroutines of workflows that a worker
    evicts are never finished. They are collected at the end of the module, and not in a later test of the same process,
    which would fail for them. It takes 0.3 s of CPU, so that it is left out for tests that have neither."""
    yield
    if not {"unit", "topologies", "repo"} & {*request.path.parts}:
        reported = sys.unraisablehook
        sys.unraisablehook = lambda _: None
        try:
            gc.collect()
        finally:
            sys.unraisablehook = reported


async def no_waiting_for_the_disk(home: Path, data: DataParts) -> None:
    """Tests kill processes, and no machine loses its power: what is written survives without `fsync`, which takes
    seconds on a busy disk. The stacks that tests start as programs keep it."""
    assert data.postgres is not None
    place, password = urlsplit(data.postgres.admin), load_credentials(open_home(home)).bootstrap
    superuser = await asyncpg.connect(
        host=place.hostname, port=place.port, user=BOOTSTRAP, password=password, database="postgres"
    )
    await superuser.execute("ALTER SYSTEM SET fsync = off")
    await superuser.execute("SELECT pg_reload_conf()")
    await superuser.close()


@pytest.fixture(scope="session")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DataParts]:
    """The data parts on a separate thread that lives as long as they do."""
    started, stop = Future[DataParts](), threading.Event()

    async def serve() -> None:
        home = tmp_path_factory.mktemp("home")
        async with embedded(home) as data:
            await no_waiting_for_the_disk(home, data)
            started.set_result(data)
            await asyncio.to_thread(stop.wait)

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if not started.done():
                started.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield started.result(90)
    finally:
        stop.set()
        thread.join(60)


@dataclass(frozen=True, slots=True)
class Urls:
    admin: str
    owner: str
    app: str
    relay: str


def _of(url: str, database: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{database}"))


@dataclass(frozen=True, slots=True)
class Template:
    """A migrated database with the examples that ship and the local users, to be copied."""

    urls: Urls
    tokens: dict[str, str]
    """Plain tokens by user name."""


@pytest.fixture(scope="session")
async def template(parts: DataParts, tmp_path_factory: pytest.TempPathFactory) -> Template:
    """Prepared once a session, as `python -m perdure.apps.bootstrap` does it."""
    assert parts.postgres is not None
    postgres = parts.postgres
    databases = {"DATABASE_ADMIN_URL": postgres.admin, "DATABASE_OWNER_URL": postgres.owner}
    databases |= {"DATABASE_URL": postgres.app, "DATABASE_RELAY_URL": postgres.relay}
    home = str(tmp_path_factory.mktemp("tokens"))
    given = {**databases, "PERDURE_LOCAL": "1", "PERDURE_EXAMPLES": "true", "PERDURE_HOME": home}
    tokens = (await bootstrap(Settings(_env_file=None, **given))).tokens  # type: ignore[arg-type]
    return Template(Urls(postgres.admin, postgres.owner, postgres.app, postgres.relay), tokens)


@pytest.fixture(scope="module")
async def urls(template: Template, request: pytest.FixtureRequest) -> AsyncIterator[Urls]:
    name = "t_" + sha256_hex(request.node.nodeid + str(os.getpid()))[:16]
    source = urlsplit(template.urls.owner).path.lstrip("/")
    admin = await asyncpg.connect(template.urls.admin)
    try:
        await admin.execute(f'CREATE DATABASE "{name}" TEMPLATE "{source}" OWNER perdure_owner')
        given = template.urls
        yield Urls(given.admin, _of(given.owner, name), _of(given.app, name), _of(given.relay, name))
        await admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
    finally:
        await admin.close()


@asynccontextmanager
async def empty_database(template: Template) -> AsyncIterator[Urls]:
    name, given = "t_old_" + new_id()[-12:], template.urls
    urls = (given.owner, given.app, given.relay)
    owner, app, relay = (_of(url, name) for url in urls)
    await provision(given.admin, owner_url=owner, app_url=app, relay_url=relay)
    yield Urls(given.admin, owner, app, relay)
    admin = await asyncpg.connect(given.admin)
    await admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
    await admin.close()


@asynccontextmanager
async def as_owner(url: str, tenant: str = "") -> AsyncIterator[asyncpg.Connection]:
    """A connection of the tables' owner: what a migration can do. With a tenant, it acts for that one."""
    owner = await asyncpg.connect(url, server_settings={"search_path": "perdure"})
    try:
        await set_up(owner)
        if tenant:
            await owner.execute("SELECT set_config('perdure.tenant', $1, false)", tenant)
        yield owner
    finally:
        await owner.close()


@pytest.fixture(scope="module")
async def db(urls: Urls) -> AsyncIterator[Database]:
    """The module's database as a worker sees it."""
    database = await Database.connect(urls.app, max_connections=40, wait_seconds=60, plan_once=True, keyring=KEYRING)
    yield database
    await database.close()


@dataclass(frozen=True, slots=True)
class Person:
    tenant_id: str
    user_id: str
    name: str
    roles: frozenset[str]
    token: str


@pytest.fixture(scope="module")
async def people(db: Database, template: Template) -> dict[str, Person]:
    found = {}
    for name, token in template.tokens.items():
        row = await db.principal_row(sha256_hex(token))
        assert row is not None
        found[name] = Person(LOCAL_TENANT, str(row["user_id"]), name, frozenset(row["roles"]), token)
    return found
