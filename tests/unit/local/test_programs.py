"""What the programs are told, and what an app folder may declare to run beside the engine."""

import os
import signal
import sys
from pathlib import Path

import pytest

from perdure.local import programs
from perdure.local.config import Program, StackConfig
from perdure.local.data_dir import StackError, open_home
from perdure.local.programs import BootstrapLine, bootstrap_line_from, read_all_app_services, read_app_services

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
    ("companions: [", "app"),
    ("\udcff", "UTF-8"),
    ("companions: 3", "companions"),
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


TOKENS = {"requester": "a", "reviewer": "b", "admin": "c"}


@pytest.mark.parametrize(("line", "told"), [
    ('{"tokens": {"requester": "a", "reviewer": "b", "admin": "c"}}', BootstrapLine(TOKENS)),
    ('{"tokens": {}, "left_out": ["x:", "  its cycle"]}', BootstrapLine({}, left_out=("x:", "  its cycle"))),
    ('{"tokens": {}, "setup_code": "ABCD"}', BootstrapLine({}, setup_code="ABCD")),
])  # fmt: skip
def test_the_tokens_are_the_last_line_of_the_prepare_step(tmp_path: Path, line: str, told: BootstrapLine) -> None:
    assert bootstrap_line_from(["migrated", '{"tokens": {"admin": "z"}}', line], tmp_path) == told


@pytest.mark.parametrize("lines", [[], ["done"], ["{}"], ['{"tokens": 3}'], ['{"tokens": {"a": "hush"}} x']])
def test_an_invalid_line_of_the_prepare_step_is_not_repeated(tmp_path: Path, lines: list[str]) -> None:
    with pytest.raises(StackError) as caught:
        bootstrap_line_from(lines, tmp_path)
    assert "hush" not in str(caught.value)
