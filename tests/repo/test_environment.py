"""`.env.example` says exactly what perdure/settings.py reads, with the same defaults."""

import os
import re
from pathlib import Path
from unittest.mock import patch

import pytest

from perdure.local.config import STACK_ALONE, StackConfig
from perdure.local.temporal_server import synchronous_setting
from perdure.settings import RoutingName, Settings, needed

EXAMPLE = Path(__file__).parents[2] / ".env.example"
LINE = re.compile(r"^([A-Z_]+)=(.*)$", re.MULTILINE)


def bare(**given: str) -> Settings:
    with patch.dict(os.environ, given, clear=True):
        return Settings(_env_file=None)


def test_the_example_names_exactly_the_variables_that_are_read() -> None:
    named = [name for name, _ in LINE.findall(EXAMPLE.read_text())]
    read = [str(each.alias) for each in Settings.model_fields.values()]
    assert sorted(named) == sorted([*read, *STACK_ALONE])


def test_the_values_of_the_example_are_the_defaults(tmp_path: Path) -> None:
    given = LINE.findall(EXAMPLE.read_text())
    assert bare(**{name: value for name, value in given if value}) == bare()
    stack = {name: value for name, value in given if name in STACK_ALONE}
    home = {"PERDURE_HOME": str(tmp_path)}
    least = {"PERDURE_LEAST_FREE_BYTES": str(bare().least_free_bytes)}
    from_example = StackConfig.from_env(environ={**home, **least, **stack})
    assert from_example.limits == StackConfig.from_env(environ=home).limits
    assert from_example.least_free_bytes == StackConfig.from_env(environ={}).least_free_bytes
    assert synchronous_setting(stack) == synchronous_setting({})


def test_no_secret_has_a_default_and_none_is_shown() -> None:
    settings = bare(DATABASE_URL="postgresql://app:hunter2@db/perdure", REDIS_URL="redis://:hunter2@cache/0")
    assert "hunter2" not in repr(settings) + str(settings)
    for name in ("database_url", "database_owner_url", "database_relay_url", "database_admin_url", "redis_url"):
        assert getattr(bare(), name) is None
    with pytest.raises(SystemExit, match="DATABASE_URL"):
        needed(bare().database_url, "DATABASE_URL")


def test_a_variable_named_like_a_field_sets_no_other_setting() -> None:
    assert bare(HOME="/home/somebody", PORT="1", HOST="example.org", LOCAL="1", APPS="/tmp") == bare()


def test_relative_folders_lie_beside_the_env_file_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = bare(PERDURE_HOME="data", PERDURE_APP="perdure/examples/refunds")
    refunds = EXAMPLE.parent / "perdure" / "examples" / "refunds"
    assert (settings.home, settings.apps) == (EXAMPLE.parent / "data", (refunds,))
    assert bare().home == EXAMPLE.parent / ".perdure"
    assert Settings.model_config["env_file"] == EXAMPLE.parent / ".env"


def test_app_folders_are_separated_like_path_and_routing_has_two_names() -> None:
    settings = bare(PERDURE_APP=os.pathsep.join(("/a", "/b")), PERDURE_ROUTING="spread")
    assert settings.apps == (Path("/a"), Path("/b"))
    assert settings.routing is RoutingName.SPREAD
    assert settings.route().tools != bare().route().tools
    assert bare(PENDING_MUTATION_TTL_SECONDS="60").request_seconds == 60
    for given, seconds in (({"PERDURE_EXIT_WHEN_HUNG": "1"}, 20), ({}, 0)):
        assert bare(**given).exit_seconds() == seconds
        assert bare(**given, PERDURE_HANG_SECONDS="0").exit_seconds() == 0
        assert bare(**given, PERDURE_HANG_SECONDS="1").exit_seconds() == min(seconds, 3)
    with pytest.raises(ValueError, match="PERDURE_ROUTING"):
        bare(PERDURE_ROUTING="sideways")
