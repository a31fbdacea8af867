"""What the programs are told, and the command lines of the parts."""

import json
import os
import signal
import stat
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from perdure.local import postgres, services, temporal_server
from perdure.local.config import Program, StackConfig
from perdure.local.data_dir import RunFile, StackError, load_credentials, open_home
from perdure.local.ports import PortFile
from perdure.local.postgres import PostgresLaunch
from perdure.local.programs import BootstrapLine, bootstrap_line_from, environment, program_spec
from perdure.local.services import (
    DataParts,
    external_postgres,
    external_temporal,
    host_and_port,
    must_answer,
    without_addresses,
)

BASE = {"PATH": "/bin", "DATABASE_ADMIN_URL": "stale", "TEMPORAL_API_KEY": "stale", "TEMPORAL_ADDRESS": "stale:1"}


def data(tmp_path: Path) -> DataParts:
    home = open_home(tmp_path)
    return DataParts(
        postgres=postgres.postgres_address(21001, load_credentials(home)),
        redis_url=services.valkey_url(21002, "secret"),
        temporal=temporal_server.address(temporal_server.TemporalPorts(21003, 21004, 21005, 21006)),
    )


def test_programs_get_every_address_but_not_the_superusers(tmp_path: Path) -> None:
    environ = data(tmp_path).environ(BASE)
    assert "perdure_app" in environ["DATABASE_URL"]
    assert "perdure_owner" in environ["DATABASE_OWNER_URL"]
    assert "perdure_relay" in environ["DATABASE_RELAY_URL"]
    assert "DATABASE_ADMIN_URL" not in environ
    assert environ["REDIS_URL"] == "redis://:secret@127.0.0.1:21002/0"
    assert environ["TEMPORAL_ADDRESS"] == "127.0.0.1:21003"
    assert environ["PERDURE_TEMPORAL_UI"] == "http://127.0.0.1:21004"


def test_the_prepare_step_alone_gets_the_superuser(tmp_path: Path) -> None:
    assert "bootstrap" in data(tmp_path).admin_environ(BASE)["DATABASE_ADMIN_URL"]


def test_settings_for_another_temporal_do_not_reach_clients_of_the_embedded_one(tmp_path: Path) -> None:
    environ = data(tmp_path).environ(BASE)
    assert "TEMPORAL_API_KEY" not in environ
    assert environ["TEMPORAL_CONFIG_FILE"] == os.devnull


def test_settings_for_a_replaced_temporal_stay_in_place() -> None:
    outside = temporal_server.TemporalAddress("cloud:7233", "mine", None, None)
    environ = DataParts(temporal=outside, temporal_is_embedded=False).environ(BASE)
    assert environ["TEMPORAL_API_KEY"] == "stale"
    assert (environ["TEMPORAL_ADDRESS"], environ["TEMPORAL_NAMESPACE"]) == ("cloud:7233", "mine")


def test_a_process_that_is_no_part_of_perdure_inherits_no_address_and_no_key() -> None:
    assert without_addresses({**BASE, "DATABASE_URL": "d", "REDIS_URL": "r", "HOME": "/h"}) == {
        "PATH": "/bin",
        "HOME": "/h",
    }


def test_a_replaced_database_serves_every_role_that_has_no_address_of_its_own() -> None:
    assert external_postgres({}) is None
    found = external_postgres({"DATABASE_URL": "app", "DATABASE_OWNER_URL": "owner"})
    assert found is not None
    assert (found.app, found.owner, found.relay, found.admin) == ("app", "owner", "app", "app")


def test_temporals_own_configuration_decides_whether_it_is_replaced(tmp_path: Path) -> None:
    nothing = {"TEMPORAL_CONFIG_FILE": os.devnull}
    assert external_temporal(nothing) is None
    named = external_temporal({**nothing, "TEMPORAL_ADDRESS": "host:7233"})
    assert named is not None
    assert (named.address, named.namespace) == ("host:7233", "default")
    profile = tmp_path / "temporal.toml"
    profile.write_text('[profile.work]\naddress = "cloud:7233"\nnamespace = "ns"\napi_key = "k"\n')
    chosen = external_temporal({"TEMPORAL_CONFIG_FILE": str(profile), "TEMPORAL_PROFILE": "work"})
    assert chosen is not None
    assert (chosen.address, chosen.namespace) == ("cloud:7233", "ns")


@pytest.mark.parametrize("named_by", ["HOME", "XDG_CONFIG_HOME"])
def test_a_profile_in_its_usual_place_is_found_without_any_variable(
    named_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    if named_by == "HOME":
        del environ["XDG_CONFIG_HOME"]
        monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    for name in [name for name in os.environ if name.startswith("TEMPORAL_")]:
        monkeypatch.delenv(name)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert external_temporal(environ) is None
    folder = tmp_path / "home" / ".config" if named_by == "HOME" else tmp_path / "xdg"
    (folder / "temporalio").mkdir(parents=True)
    (folder / "temporalio" / "temporal.toml").write_text('[profile.default]\naddress = "cloud:7233"\n')
    found = external_temporal(environ)
    assert found is not None and found.address == "cloud:7233"


def test_a_broken_temporal_configuration_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "temporal.toml").write_text("nonsense")
    with pytest.raises(StackError, match="Temporal") as caught:
        external_temporal({"TEMPORAL_CONFIG_FILE": str(tmp_path / "temporal.toml")})
    assert "\n" not in str(caught.value)


async def test_a_replaced_part_that_does_not_answer_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("perdure.local.services._TRY_AGAIN_SECONDS", 0.01)
    with pytest.raises(StackError, match=r"DATABASE_URL .*127\.0\.0\.1:9") as caught:
        await must_answer("DATABASE_URL", "postgresql://user:hush@127.0.0.1:9/db")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("postgresql://u:p@db/x", ("db", 5432)),
        ("redis://cache:7000/0", ("cache", 7000)),
        ("rediss://cache", ("cache", 6379)),
        ("temporal.example:7234", ("temporal.example", 7234)),
        ("temporal.example", ("temporal.example", 7233)),
        ("postgresql:///db?host=/run/postgresql", ("", 5432)),
    ],
)
def test_an_address_is_read_in_every_form(location: str, expected: tuple[str, int]) -> None:
    assert host_and_port("X", location) == expected


def test_an_address_that_is_none_is_one_clear_line() -> None:
    with pytest.raises(StackError, match="REDIS_URL"):
        host_and_port("REDIS_URL", "redis://cache:port/0")


def test_no_password_is_on_a_command_line(tmp_path: Path) -> None:
    home = open_home(tmp_path)
    credentials = load_credentials(home)
    specs = [
        postgres.postgres_spec(home, PostgresLaunch(Path("/pg")), 1),
        services.valkey_spec(home, Path("/valkey-server"), 2, credentials.valkey),
        temporal_server.child_spec(home, Path("/temporal"), temporal_server.take_ports(PortFile(home.ports_file))),
    ]
    words = " ".join(word for spec in specs for word in (*spec.command, *spec.environ.values()))
    for password in json.loads(home.secrets_file.read_text()).values():
        assert password not in words
    configuration = home.valkey / "valkey.conf"
    assert credentials.valkey in configuration.read_text()
    assert stat.S_IMODE(configuration.stat().st_mode) == 0o600


def test_postgres_keeps_every_durability_setting_at_its_default(tmp_path: Path) -> None:
    command = " ".join(postgres.postgres_spec(open_home(tmp_path), PostgresLaunch(Path("/pg")), 1).command)
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        assert setting not in command
    assert "max_connections=200" in command
    assert "unix_socket_directories= " in command


def test_temporal_gets_the_settings_that_the_figures_rest_on() -> None:
    ports = temporal_server.TemporalPorts(1, 2, 3, 4)
    command = temporal_server.command(Path("/temporal"), "temporal.db", ports)
    pairs = {f"{flag}={value}" for flag, value in pairwise(command)}
    assert "--dynamic-config-value=system.enableActivityEagerExecution=true" in pairs
    assert "--dynamic-config-value=history.transferProcessorMaxPollRPS=2000" in pairs
    assert "--sqlite-pragma=journal_mode=wal" in pairs
    assert "--metrics-port=4" in pairs
    assert "--headless" in command and not any(word.startswith("--ui") for word in command)
    assert f'--dynamic-config-value=frontend.httpAllowedHosts=["{ports.api_host}"]' in pairs
    assert ports.api_host != temporal_server.TemporalPorts(1, 2, 3, 4).api_host
    for name in ("PerdureTenant", "PerdureAgent", "PerdureConversation", "PerdureStatus"):
        assert f"--search-attribute={name}=Keyword" in pairs


def test_who_fears_power_cuts_can_have_temporal_wait_for_the_disk() -> None:
    assert temporal_server.synchronous_setting({}) == "normal"
    full = temporal_server.synchronous_setting({"PERDURE_TEMPORAL_SYNCHRONOUS": "full"})
    ports = temporal_server.TemporalPorts(1, 2, 3, 4)
    assert "synchronous=full" in temporal_server.command(Path("/temporal"), "temporal.db", ports, full)
    with pytest.raises(StackError, match="PERDURE_TEMPORAL_SYNCHRONOUS"):
        temporal_server.synchronous_setting({"PERDURE_TEMPORAL_SYNCHRONOUS": "off"})


def test_a_program_gets_the_stacks_settings_and_its_ready_file(tmp_path: Path) -> None:
    home = open_home(tmp_path)
    config = StackConfig(home=tmp_path, port=9000, environ={}, app_dirs=(Path("/a"), Path("/b")), drain_seconds=7)
    environ = environment(config, home, {"REDIS_URL": "r"}, {"PAYMENTS_URL": "http://p"})
    spec = program_spec(config, home, Program("worker-llm", ("x",)), environ)
    assert spec.environ["PERDURE_READY_FILE"] == str(home.ready_file("worker-llm"))
    assert spec.environ["PERDURE_APP"] == os.pathsep.join(("/a", "/b"))
    assert (spec.environ["PERDURE_LOCAL"], spec.environ["PERDURE_PORT"]) == ("1", "9000")
    assert (spec.environ["PERDURE_ROUTING"], spec.environ["PAYMENTS_URL"]) == ("compact", "http://p")
    assert spec.stop_steps == ((signal.SIGTERM, 7),)
    home.ready_file("worker-llm").write_text("of the process before")
    assert spec.before_start is not None
    spec.before_start()
    assert not home.ready_file("worker-llm").exists()


def test_the_tokens_are_the_last_line_of_the_prepare_step(tmp_path: Path) -> None:
    lines = ["migrated", '{"tokens": {"requester": "a", "reviewer": "b", "admin": "c"}}']
    assert bootstrap_line_from(lines, tmp_path) == BootstrapLine({"requester": "a", "reviewer": "b", "admin": "c"})
    lines.append('{"tokens": {}, "left_out": ["the app x is left out:", "  its cycle"]}')
    assert bootstrap_line_from(lines, tmp_path).left_out == ("the app x is left out:", "  its cycle")
    lines.append('{"tokens": {}, "setup_code": "ABCD"}')
    assert bootstrap_line_from(lines, tmp_path).setup_code == "ABCD"


@pytest.mark.parametrize("lines", [[], ["done"], ["{}"], ['{"tokens": 3}'], ['{"tokens": {"a": "hush"}} x']])
def test_a_prepare_step_that_breaks_its_promise_is_one_line_without_its_words(tmp_path: Path, lines: list[str]) -> None:
    with pytest.raises(StackError) as caught:
        bootstrap_line_from(lines, tmp_path)
    assert "hush" not in str(caught.value)


def test_run_json_has_the_promised_keys_and_is_its_owners_alone(tmp_path: Path) -> None:
    addresses = {"api": "http://a", "temporal": "t:1", "temporal_ui": "u", "postgres": "p", "redis": "r"}
    tokens = {"requester": "x", "reviewer": "y", "admin": "z"}
    run_file = RunFile(tmp_path / "run.json", addresses, tokens, {}, 1, "compact")
    run_file.write({"api": 7}, ["api"], {"api": 18080})
    content = json.loads(run_file.path.read_text())
    assert {**addresses, "pids": {"api": 7}, "tokens": tokens, "ports": {"api": 18080}}.items() <= content.items()
    assert stat.S_IMODE(run_file.path.stat().st_mode) == 0o600
    assert "setup_code" not in content
    with_code = replace(run_file, setup_code_file=tmp_path / "setup.code")
    (tmp_path / "setup.code").write_text("ABCD\n")
    with_code.write({"api": 7}, ["api"], {"api": 18080})
    assert json.loads(run_file.path.read_text()) == {**content, "setup_code": "ABCD"}
    (tmp_path / "setup.code").unlink()
    with_code.write({"api": 7}, ["api"], {"api": 18080})
    assert json.loads(run_file.path.read_text()) == content
    run_file.remove()
    assert not run_file.path.exists()
