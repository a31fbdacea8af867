"""Which apps are published: those that are asked for, the same for the stack, for bootstrap and for the workers."""

import os
from pathlib import Path

import pytest

from perdure.apps import SHIPPED, app_folders, find_apps
from perdure.local.config import ROOT, StackConfig, shipped_apps
from perdure.local.data_dir import StackError, open_home
from perdure.local.programs import environment, read_all_app_services
from perdure.settings import Settings

SIX = tuple(SHIPPED / name for name in ("care", "charts", "filings", "ops", "refunds", "skeleton"))
MINE, OTHER = "mine", "other"
ASKED = [
    # PERDURE_APP, PERDURE_EXAMPLES, --app, --examples, the apps
    ("", "", (), None, ()),
    ("", "false", (), None, ()),
    ("", "true", (), None, SIX),
    ("", "1", (), False, ()),
    ("", "", (), True, SIX),
    ("", "off", (), True, SIX),
    (MINE, "", (), None, (MINE,)),
    ("", "", (MINE,), None, (MINE,)),
    (MINE, "", (OTHER,), None, (OTHER,)),
    (MINE, "true", (OTHER,), None, (*SIX, OTHER)),
    (MINE, "", (MINE,), None, (MINE,)),
    (f"{OTHER}{os.pathsep}{MINE}", "yes", (), None, (*SIX, OTHER, MINE)),
    ("", "", (MINE,), True, (*SIX, MINE)),
    ("", "", (SHIPPED / "refunds",), None, (SHIPPED / "refunds",)),
    ("", "", (SHIPPED / "refunds", MINE), True, (*SIX, MINE)),
]


def in_process(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The settings of a process with this environment."""
    for name in ("PERDURE_APP", "PERDURE_EXAMPLES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return Settings(_env_file=None)


@pytest.mark.parametrize(("variable", "flag", "typed", "option", "expected"), ASKED)
def test_what_is_asked_for_is_published_and_nothing_else(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    flag: str,
    typed: tuple[str | Path, ...],
    option: bool | None,
    expected: tuple[str | Path, ...],
) -> None:
    for name in (MINE, OTHER):
        (tmp_path / name / "agents").mkdir(parents=True)
    written = os.pathsep.join(str(tmp_path / each) for each in variable.split(os.pathsep) if each)
    environ = {"PERDURE_HOME": str(tmp_path / "home"), "PERDURE_APP": written, "PERDURE_EXAMPLES": flag}
    config = StackConfig.from_env([tmp_path / each for each in typed], None, option, environ=environ)
    assert config.apps == tuple(tmp_path / each for each in expected)
    handed = environment(config, open_home(config.home), {}, {})
    settings = in_process(handed, monkeypatch)
    assert app_folders(settings.apps, settings.examples) == config.apps, "bootstrap and workers have the stack's apps"
    assert [app.folder for app in find_apps(config.apps)] == [*config.apps]


def test_the_stack_and_the_engine_know_the_same_examples() -> None:
    assert shipped_apps() == app_folders((), examples=True) == SIX
    assert SHIPPED == ROOT / "perdure" / "examples"


def test_services_are_those_of_the_apps_that_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()

    def services(app: Path, **environ: str) -> list[str]:
        config = StackConfig.from_env([app], environ={"PERDURE_HOME": str(tmp_path), **environ})
        return [service.name for _, service in read_all_app_services(config.apps)]

    assert services(tmp_path) == []
    assert services(SHIPPED / "refunds") == ["payments"]
    assert services(SHIPPED / "refunds", PERDURE_EXAMPLES="true") == ["bookings", "payments"]


@pytest.mark.parametrize("text", ["1", "0", "true", "False", "YES", "n", "on", "off", "t", "maybe", "2", " ", "truee"])
def test_a_flag_is_read_alike_by_the_stack_and_by_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    environ = {"PERDURE_HOME": str(tmp_path), "PERDURE_EXAMPLES": text}
    try:
        settings = in_process({"PERDURE_EXAMPLES": text}, monkeypatch).examples
    except ValueError:
        with pytest.raises(StackError, match="PERDURE_EXAMPLES"):
            StackConfig.from_env(environ=environ)
    else:
        assert StackConfig.from_env(environ=environ).examples is settings
