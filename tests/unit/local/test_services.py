"""The data parts: their addresses for the programs, parts that are replaced, the command line of Temporal, free ports
that stay the same; and what an app folder may declare to run beside the engine."""

import json
import os
import signal
import socket
import stat
import sys
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest

from perdure.local import postgres, programs, services, temporal_server
from perdure.local.config import Program, StackConfig
from perdure.local.data_dir import StackError, load_credentials, open_home
from perdure.local.output import Console
from perdure.local.ports import HOST, PortFile, conflicting_port, free_port, is_free
from perdure.local.programs import BootstrapLine, bootstrap_line_from, read_all_app_services, read_app_services
from perdure.local.supervisor import Supervisor

BASE = {"PATH": "/bin", "DATABASE_ADMIN_URL": "stale", "TEMPORAL_API_KEY": "stale", "TEMPORAL_ADDRESS": "stale:1"}
TOKENS = {"requester": "a", "reviewer": "b", "admin": "c"}


def test_only_the_prepare_step_gets_the_superusers_address(tmp_path: Path) -> None:
    data = services.DataParts(
        postgres=postgres.postgres_address(21001, load_credentials(open_home(tmp_path))),
        redis_url=services.valkey_url(21002, "secret"),
        temporal=temporal_server.address(temporal_server.TemporalPorts(21003, 21004, 21005, 21006)),
    )
    environ = data.environ(BASE)
    for variable, role in (("DATABASE_URL", "app"), ("DATABASE_OWNER_URL", "owner"), ("DATABASE_RELAY_URL", "relay")):
        assert f"perdure_{role}" in environ[variable]
    assert "DATABASE_ADMIN_URL" not in environ
    assert "bootstrap" in data.admin_environ(BASE)["DATABASE_ADMIN_URL"]
    assert environ["REDIS_URL"] == "redis://:secret@127.0.0.1:21002/0"
    assert environ["TEMPORAL_ADDRESS"] == "127.0.0.1:21003"
    assert environ["PERDURE_TEMPORAL_UI"] == "http://127.0.0.1:21004"
    assert "TEMPORAL_API_KEY" not in environ, "a setting for another Temporal"
    assert environ["TEMPORAL_CONFIG_FILE"] == os.devnull


def test_settings_for_an_external_temporal_are_kept() -> None:
    outside = temporal_server.TemporalAddress("cloud:7233", "mine", None, None)
    environ = services.DataParts(temporal=outside, temporal_is_embedded=False).environ(BASE)
    assert environ["TEMPORAL_API_KEY"] == "stale"
    assert (environ["TEMPORAL_ADDRESS"], environ["TEMPORAL_NAMESPACE"]) == ("cloud:7233", "mine")


def test_a_process_outside_perdure_inherits_no_address_and_no_key() -> None:
    left = services.without_addresses({**BASE, "DATABASE_URL": "d", "REDIS_URL": "r", "HOME": "/h"})
    assert left == {"PATH": "/bin", "HOME": "/h"}


def test_an_external_database_serves_every_role_without_its_own_address() -> None:
    assert services.external_postgres({}) is None
    found = services.external_postgres({"DATABASE_URL": "app", "DATABASE_OWNER_URL": "owner"})
    assert found is not None
    assert (found.app, found.owner, found.relay, found.admin) == ("app", "owner", "app", "")


@pytest.mark.parametrize(("before", "environ", "is_lost"), [
    ({"pg/PG_VERSION": "18"}, {}, True), ({"pg/PG_VERSION": "18", "temporal.db": ""}, {}, True),
    ({"pg/PG_VERSION": "18", "temporal.db": "SQLite"}, {}, False), ({}, {}, False),
    ({}, {"DATABASE_URL": "postgresql://db"}, True),
])  # fmt: skip
def test_lost_history_is_found(tmp_path: Path, before: dict[str, str], environ: dict[str, str], is_lost: bool) -> None:
    home = open_home(tmp_path)
    port_file, credentials = PortFile(home.ports_file), load_credentials(home)
    home.postgres.mkdir()
    for name, content in before.items():
        (tmp_path / name).write_text(content)
    start = services.DataStart(Supervisor(home, Console(None)), home, port_file, environ, credentials, overridable=True)
    assert start.missing_history() == (home.temporal_db if is_lost else None)


def temporal_of(environ: dict[str, str]) -> tuple[str, str] | None:
    found = services.external_temporal(environ)
    return (found.address, found.namespace) if found is not None else None


def test_temporals_own_configuration_can_replace_the_embedded_server(tmp_path: Path) -> None:
    nothing = {"TEMPORAL_CONFIG_FILE": os.devnull}
    assert temporal_of(nothing) is None
    assert temporal_of({**nothing, "TEMPORAL_ADDRESS": "host:7233"}) == ("host:7233", "default")
    profile = tmp_path / "temporal.toml"
    profile.write_text('[profile.work]\naddress = "cloud:7233"\nnamespace = "ns"\napi_key = "k"\n')
    named = {"TEMPORAL_CONFIG_FILE": str(profile), "TEMPORAL_PROFILE": "work"}
    assert temporal_of(named) == ("cloud:7233", "ns")
    profile.write_text("nonsense")
    with pytest.raises(StackError, match="Temporal") as caught:
        services.external_temporal(named)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("named_by", "folder"), [("HOME", ".config"), ("XDG_CONFIG_HOME", "")])
def test_a_default_profile_is_read(named_by: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CONFIG_HOME", *(name for name in os.environ if name.startswith("TEMPORAL_"))):
        monkeypatch.delenv(name, raising=False)
    environ = {"HOME": str(tmp_path / "home"), named_by: str(tmp_path)}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert temporal_of(environ) is None
    (tmp_path / folder / "temporalio").mkdir(parents=True)
    (tmp_path / folder / "temporalio" / "temporal.toml").write_text('[profile.default]\naddress = "cloud:7233"\n')
    assert temporal_of(environ) == ("cloud:7233", "default")


async def test_an_unreachable_part_is_reported_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.local.services._RETRY_SECONDS", 0.01)
    with pytest.raises(StackError, match=r"DATABASE_URL .*127\.0\.0\.1:9") as caught:
        await services.wait_until_reachable("DATABASE_URL", "postgresql://user:hush@127.0.0.1:9/db")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(("location", "expected"), [
    ("postgresql://u:p@db/x", ("db", 5432)), ("redis://cache:7000/0", ("cache", 7000)),
    ("rediss://cache", ("cache", 6379)), ("temporal.example:7234", ("temporal.example", 7234)),
    ("temporal.example", ("temporal.example", 7233)), ("postgresql:///db?host=/run/postgresql", ("", 5432)),
])  # fmt: skip
def test_an_address_is_parsed_in_every_form(location: str, expected: tuple[str, int]) -> None:
    assert services.host_and_port("X", location) == expected
    with pytest.raises(StackError, match="REDIS_URL") as caught:
        services.host_and_port("REDIS_URL", "redis://:hush/hush@cache/0")
    assert "hush" not in str(caught.value)


def test_no_password_is_on_a_command_line(tmp_path: Path) -> None:
    home = open_home(tmp_path)
    credentials = load_credentials(home)
    specs = [
        postgres.postgres_spec(home, postgres.PostgresLaunch(Path("/pg")), 1),
        services.valkey_spec(home, Path("/valkey-server"), 2, credentials.valkey),
        temporal_server.child_spec(home, Path("/temporal"), temporal_server.take_ports(PortFile(home.ports_file))),
    ]
    words = " ".join(word for spec in specs for word in (*spec.command, *spec.environ.values()))
    assert not [password for password in json.loads(home.secrets_file.read_text()).values() if password in words]
    configuration = home.valkey / "valkey.conf"
    assert credentials.valkey in configuration.read_text()
    assert stat.S_IMODE(configuration.stat().st_mode) == 0o600


def test_temporal_gets_the_settings_of_the_measured_figures() -> None:
    ports = temporal_server.TemporalPorts(1, 2, 3, 4)
    words = temporal_server.command(Path("/temporal"), "temporal.db", ports)
    pairs = {f"{flag}={value}" for flag, value in pairwise(words)}
    assert pairs >= {
        "--dynamic-config-value=system.enableActivityEagerExecution=true",
        "--dynamic-config-value=history.transferProcessorMaxPollRPS=2000",
        "--sqlite-pragma=journal_mode=wal",
        "--sqlite-pragma=temp_store=memory",
        "--metrics-port=4",
        f'--dynamic-config-value=frontend.httpAllowedHosts=["{ports.api_host}"]',
        *(f"--search-attribute=Perdure{name}=Keyword" for name in ("Tenant", "Agent", "Conversation", "Status")),
    }
    assert "--headless" in words and not any(word.startswith("--ui") for word in words)
    assert ports.api_host != temporal_server.TemporalPorts(1, 2, 3, 4).api_host


def test_temporal_can_sync_every_write() -> None:
    name, ports = "PERDURE_TEMPORAL_SYNCHRONOUS", temporal_server.TemporalPorts(1, 2, 3, 4)
    assert temporal_server.synchronous_setting({}) == "normal"
    full = temporal_server.synchronous_setting({name: "full"})
    assert "synchronous=full" in temporal_server.command(Path("/temporal"), "temporal.db", ports, full)
    with pytest.raises(StackError, match=name):
        temporal_server.synchronous_setting({name: "off"})


DECLARED = """
title: an app
companions:
  - name: payments
    command: [python, -m, payments]
    port_env: PAYMENTS_PORT
    url_env: PAYMENTS_URL
    ready_path: /healthz
    env: {CURRENCY: EUR}
"""


def app(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "app.yaml").write_bytes(text.encode(errors="surrogateescape"))
    return folder


def test_an_app_service_gets_a_port_and_a_folder_and_no_address(tmp_path: Path) -> None:
    folder, home = app(tmp_path / "a", DECLARED), open_home(tmp_path / "home")
    (companion,) = read_app_services(folder)
    assert (companion.name, companion.port_env, companion.url_env) == ("payments", "PAYMENTS_PORT", "PAYMENTS_URL")
    spec = programs.app_service_spec(home, folder, companion, 23456, {"PATH": "/bin"})
    assert (spec.command, spec.cwd) == ((sys.executable, "-m", "payments"), folder)
    assert spec.environ == {
        "PATH": "/bin", "CURRENCY": "EUR", "PAYMENTS_PORT": "23456",
        "PERDURE_COMPANION_HOME": str(home.service("payments")), "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    assert home.service("payments").is_dir()


@pytest.mark.parametrize("text", ["", "title: x", "companions: []"])
def test_an_app_without_services_declares_none(tmp_path: Path, text: str) -> None:
    assert read_app_services(app(tmp_path / "a", text)) == read_app_services(tmp_path) == ()


@pytest.mark.parametrize(("text", "named"), [
    ("companions: [", "app"), ("\udcff", "UTF-8"), ("companions: 3", "companions"),
    (DECLARED.replace("payments\n", "Pay ments\n", 1), "name"),
    (DECLARED.replace("[python, -m, payments]", "[]"), "command"),
    (DECLARED.replace("PAYMENTS_PORT", "payments port"), "port_env"),
    (DECLARED.replace("ready_path: /healthz", "ready_pth: /healthz"), "ready_pth"),
])  # fmt: skip
def test_an_invalid_declaration_is_reported_with_file_and_field(tmp_path: Path, text: str, named: str) -> None:
    folder = app(tmp_path / "a", text)
    with pytest.raises(StackError, match=named) as caught:
        read_app_services(folder)
    assert str(folder / "app.yaml") in str(caught.value) and "\n" not in str(caught.value)


def test_a_token_is_created_once_and_a_damaged_one_is_reported(tmp_path: Path) -> None:
    (service,) = read_app_services(app(tmp_path / "a", DECLARED + "    token_env: PAYMENTS_TOKEN\n"))
    home = open_home(tmp_path / "home")
    assert (made := programs.token_environ(home, service)) == programs.token_environ(home, service)
    token = home.service(service.name) / "token"
    assert made == {"PAYMENTS_TOKEN": token.read_text()}
    token.write_bytes(b"\xff")
    with pytest.raises(StackError, match=str(token)):
        programs.token_environ(home, service)


def test_two_apps_cannot_declare_the_same_name_or_variable(tmp_path: Path) -> None:
    one, other = app(tmp_path / "a", DECLARED), app(tmp_path / "b", DECLARED)
    with pytest.raises(StackError, match="payments") as caught:
        read_all_app_services([one, other])
    assert str(one) in str(caught.value) and str(other) in str(caught.value)
    with pytest.raises(StackError, match="PAYMENTS_URL"):
        read_all_app_services([one, app(tmp_path / "b", DECLARED.replace("name: payments", "name: other"))])


def test_a_program_gets_the_stacks_settings_and_its_ready_file(tmp_path: Path) -> None:
    home = open_home(tmp_path)
    config = StackConfig(home=tmp_path, port=9000, environ={}, app_dirs=(Path("/a"), Path("/b")), drain_seconds=7)
    environ = programs.environment(config, home, {"REDIS_URL": "r"}, {"PAYMENTS_URL": "http://p"})
    spec = programs.program_spec(config, home, Program("worker-llm", ("x",)), environ)
    ready = home.ready_file("worker-llm")
    told = {
        "PERDURE_READY_FILE": str(ready), "PERDURE_APP": os.pathsep.join(("/a", "/b")), "PERDURE_LOCAL": "1",
        "PERDURE_PORT": "9000", "PERDURE_ROUTING": "compact", "PAYMENTS_URL": "http://p",
    }  # fmt: skip
    assert told.items() <= spec.environ.items()
    assert spec.stop_steps == ((signal.SIGTERM, 7),)
    ready.write_text("of the process before")
    assert spec.before_start is not None
    spec.before_start()
    assert not ready.exists()


@pytest.mark.parametrize(("line", "told"), [
    ('{"tokens": {"requester": "a", "reviewer": "b", "admin": "c"}}', BootstrapLine(TOKENS)),
    ('{"tokens": {}, "left_out": ["x:", "  its cycle"]}', BootstrapLine({}, left_out=("x:", "  its cycle"))),
    (
        '{"tokens": {}, "setup_code": "ABCD", "setup_code_expires_at": "2026-11-21T12:00:00+00:00"}',
        BootstrapLine({}, setup_code="ABCD", setup_code_expires_at=datetime(2026, 11, 21, 12, tzinfo=UTC)),
    ),
])  # fmt: skip
def test_the_tokens_are_the_last_line_of_the_prepare_step(tmp_path: Path, line: str, told: BootstrapLine) -> None:
    assert bootstrap_line_from(["migrated", '{"tokens": {"admin": "z"}}', line], tmp_path) == told


@pytest.mark.parametrize("lines", [[], ["done"], ["{}"], ['{"tokens": 3}'], ['{"tokens": {"a": "hush"}} x']])
def test_an_invalid_line_of_the_prepare_step_is_not_repeated(tmp_path: Path, lines: list[str]) -> None:
    with pytest.raises(StackError) as caught:
        bootstrap_line_from(lines, tmp_path)
    assert "hush" not in str(caught.value)


def test_a_remembered_port_is_below_those_of_outgoing_connections(tmp_path: Path) -> None:
    path, names = tmp_path / "ports.json", [f"part-{number}" for number in range(20)]
    ports = [*map(PortFile(path).take, names)]
    assert len(set(ports)) == 20 and all(port < 32_768 for port in ports)
    assert [*map(PortFile(path).take, names)] == ports


def test_a_port_of_another_process_is_replaced_and_the_new_one_remembered(tmp_path: Path) -> None:
    path = tmp_path / "ports.json"
    before = PortFile(path).take("postgres")
    with socket.socket() as other:
        other.bind((HOST, before))
        other.listen()
        after = PortFile(path).take("postgres")
    assert after != before
    assert PortFile(path).take("postgres") == after


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"postgres": "x"}', '{"postgres": 99999999}', '{"postgres": -1}'])
def test_a_damaged_file_is_ignored(tmp_path: Path, content: str) -> None:
    path = tmp_path / "ports.json"
    path.write_text(content)
    assert is_free(PortFile(path).take("postgres"))


def test_two_names_never_share_a_port_even_if_they_do_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "ports.json"
    shared = PortFile(path).take("a")
    path.write_text(f'{{"a": {shared}, "b": {shared}}}')
    port_file = PortFile(path)
    assert port_file.take("a") != port_file.take("b")


def test_a_part_never_gets_a_reserved_port(tmp_path: Path) -> None:
    path = tmp_path / "ports.json"
    configured = PortFile(path).take("postgres")
    assert PortFile(path, reserved=(configured,)).take("postgres") != configured


@pytest.mark.parametrize(("lines", "position"), [
    (["can't set frontend HTTP port {1}: address already in use", "bye"], 1),
    (['LOG:  could not bind IPv4 address "127.0.0.1": Address already in use', "FATAL:  no sockets"], 0),
    (["Error: listen EADDRINUSE 127.0.0.1:{1}"], 1),
    (["unable to open database file", "listening on {1}"], None),
    ([], None),
])  # fmt: skip
def test_the_conflicting_port_is_in_the_last_lines(lines: list[str], position: int | None) -> None:
    ports = (free_port(), free_port())
    expected = None if position is None else ports[position]
    assert conflicting_port(ports, [line.format(*ports) for line in lines]) == expected
    assert conflicting_port((), lines) is None
