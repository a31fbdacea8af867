"""What an app folder may declare to run beside the engine."""

import sys
from pathlib import Path

import pytest

from perdure.local.data_dir import StackError, open_home
from perdure.local.programs import app_service_spec, read_all_app_services, read_app_services

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
    (folder / "app.yaml").write_text(text)
    return folder


def test_a_companion_is_read_with_all_its_fields(tmp_path: Path) -> None:
    (companion,) = read_app_services(app(tmp_path / "a", DECLARED))
    assert (companion.name, companion.port_env, companion.url_env) == ("payments", "PAYMENTS_PORT", "PAYMENTS_URL")
    assert companion.command == ("python", "-m", "payments")


@pytest.mark.parametrize("text", ["", "title: x", "companions: []"])
def test_an_app_without_companions_declares_none(tmp_path: Path, text: str) -> None:
    assert read_app_services(app(tmp_path / "a", text)) == ()
    assert read_app_services(tmp_path) == ()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("companions: [", "app"),
        ("companions: 3", "companions"),
        (DECLARED.replace("payments\n", "Pay ments\n", 1), "name"),
        (DECLARED.replace("[python, -m, payments]", "[]"), "command"),
        (DECLARED.replace("PAYMENTS_PORT", "payments port"), "port_env"),
        (DECLARED.replace("ready_path: /healthz", "ready_pth: /healthz"), "ready_pth"),
    ],
)
def test_a_mistake_is_one_line_with_the_file_and_the_field(tmp_path: Path, text: str, named: str) -> None:
    folder = app(tmp_path / "a", text)
    with pytest.raises(StackError, match=named) as caught:
        read_app_services(folder)
    assert str(folder / "app.yaml") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_apps_may_not_claim_the_same_name_or_variable(tmp_path: Path) -> None:
    one = app(tmp_path / "a", DECLARED)
    other = app(tmp_path / "b", DECLARED)
    with pytest.raises(StackError, match="payments") as caught:
        read_all_app_services([one, other])
    assert str(one) in str(caught.value) and str(other) in str(caught.value)
    with pytest.raises(StackError, match="PAYMENTS_URL"):
        read_all_app_services([one, app(tmp_path / "b", DECLARED.replace("name: payments", "name: other"))])


def test_a_companion_gets_its_port_and_a_folder_and_nothing_of_ours(tmp_path: Path) -> None:
    folder = app(tmp_path / "a", DECLARED)
    home = open_home(tmp_path / "home")
    spec = app_service_spec(home, folder, read_app_services(folder)[0], 23456, {"PATH": "/bin"})
    assert spec.command == (sys.executable, "-m", "payments")
    assert spec.cwd == folder
    assert spec.environ == {
        "PATH": "/bin",
        "CURRENCY": "EUR",
        "PAYMENTS_PORT": "23456",
        "PERDURE_COMPANION_HOME": str(home.service("payments")),
        "PYTHONUNBUFFERED": "1",
    }
    assert home.service("payments").is_dir()
