"""The data parts: their addresses for the programs, parts that are replaced, and the command line of Temporal."""

import json
import os
import stat
from itertools import pairwise
from pathlib import Path

import pytest

from perdure.local import postgres, services, temporal_server
from perdure.local.data_dir import StackError, load_credentials, open_home
from perdure.local.output import Console
from perdure.local.ports import PortFile
from perdure.local.supervisor import Supervisor

BASE = {"PATH": "/bin", "DATABASE_ADMIN_URL": "stale", "TEMPORAL_API_KEY": "stale", "TEMPORAL_ADDRESS": "stale:1"}


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
    ({"pg/PG_VERSION": "18"}, {}, True),
    ({"pg/PG_VERSION": "18", "temporal.db": ""}, {}, True),
    ({"pg/PG_VERSION": "18", "temporal.db": "SQLite"}, {}, False),
    ({}, {}, False),
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
    ("postgresql://u:p@db/x", ("db", 5432)),
    ("redis://cache:7000/0", ("cache", 7000)),
    ("rediss://cache", ("cache", 6379)),
    ("temporal.example:7234", ("temporal.example", 7234)),
    ("temporal.example", ("temporal.example", 7233)),
    ("postgresql:///db?host=/run/postgresql", ("", 5432)),
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
