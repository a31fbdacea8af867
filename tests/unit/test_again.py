"""A second run of what failed runs that and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.again import FAILED, failed

ROOT = Path(__file__).parents[2]
RAN = "from pathlib import Path\n\n\ndef test_{0}():\n    Path('ran').open('a').write('{0} ')\n"
UNSTEADY = "from pathlib import Path\n\nif not Path('second').exists():\n    raise ImportError('not yet')\n"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A Python of this environment, in that folder."""
    command = [sys.executable, *arguments]
    given = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, check=False, timeout=100)


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
    assert again.returncode == 0 and "PASSED test_unsteady.py::test_unsteady" in again.stdout, again.stdout
    assert (tmp_path / "ran").read_text() == "unsteady "


def test_where_nothing_failed_by_its_name_nothing_runs_again(tmp_path: Path) -> None:
    (tmp_path / "test_steady.py").write_text(RAN.format("steady"))
    again = run(tmp_path, "-m", "tests.again")
    assert (again.returncode, "the run itself did" in again.stdout) == (0, True)
    assert not (tmp_path / "ran").exists()
