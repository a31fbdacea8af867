"""A second run of what failed runs that and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.again import FAILED, MOST, failed, may_be_unsteady

ROOT = Path(__file__).parents[2]
RAN = "from pathlib import Path\n\n\ndef test_{0}():\n    Path('ran').open('a').write('{0} ')\n"
UNSTEADY = "from pathlib import Path\n\nif not Path('second').exists():\n    raise ImportError('not yet')\n"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A Python of this environment, in that folder."""
    command = [sys.executable, *arguments]
    given = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, check=False, timeout=100)


@pytest.mark.soak
@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_after_a_module_that_could_not_be_collected_only_that_module_runs_again(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    (tmp_path / "test_steady.py").write_text(RAN.format("steady"))
    (tmp_path / "test_unsteady.py").write_text(UNSTEADY + RAN.format("unsteady"))
    first = run(tmp_path, "-m", "pytest", "--cache-clear", *workers)
    assert first.returncode and failed(tmp_path / FAILED) == ["test_unsteady.py"], first.stdout
    (tmp_path / "ran").unlink(missing_ok=True)
    (tmp_path / "second").touch()
    again = run(tmp_path, "-m", "tests.again")
    assert again.returncode == 1 and "PASSED test_unsteady.py::test_unsteady" in again.stdout, again.stdout
    assert (tmp_path / "ran").read_text() == "unsteady "


@pytest.mark.soak
@pytest.mark.parametrize(("fails", "code", "runs"), [("False", 0, 3), ("len(done) == 2", 1, 3), ("True", 1, 1)])
def test_what_passes_thrice_alone_is_unsteady_and_what_fails_once_has_failed(
    tmp_path: Path, fails: str, code: int, runs: int
) -> None:
    file = tmp_path / "tests" / "workflow" / "test_unsteady.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "from pathlib import Path\n\n\ndef test_it():\n"
        "    done = Path('ran').read_text() if Path('ran').exists() else ''\n"
        f"    Path('ran').write_text(done + 'x')\n    assert not ({fails})\n"
    )
    kept = tmp_path / FAILED
    kept.parent.mkdir(parents=True)
    kept.write_text('{"tests/workflow/test_unsteady.py::test_it": true}')
    again = run(tmp_path, "-m", "tests.again")
    assert (again.returncode, "UNSTEADY" in again.stdout) == (code, code == 0), again.stdout
    assert (tmp_path / "ran").read_text() == "x" * runs


@pytest.mark.parametrize(
    ("names", "forgiven"),
    [
        (["tests/pages/test_chat.py::test_a"], True),
        ([f"tests/workflow/test_x.py::test_{n}" for n in range(MOST)], True),
        ([f"tests/workflow/test_x.py::test_{n}" for n in range(MOST + 1)], False),
        (["tests/pages/test_chat.py"], False),
        (["tests/unit/test_x.py::test_a"], False),
        (["tests/pages/test_chat.py::test_a", "tests/replay/test_recorded.py::test_a"], False),
        ([], False),
    ],
)
def test_only_a_few_tests_in_real_time_can_be_forgiven(names: list[str], forgiven: bool) -> None:
    assert may_be_unsteady(names) is forgiven


def test_where_nothing_failed_by_its_name_nothing_runs_again(tmp_path: Path) -> None:
    (tmp_path / "test_steady.py").write_text(RAN.format("steady"))
    again = run(tmp_path, "-m", "tests.again")
    assert (again.returncode, "the run itself did" in again.stdout) == (1, True)
    assert not (tmp_path / "ran").exists()
