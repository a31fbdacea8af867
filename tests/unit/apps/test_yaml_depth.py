"""Files that are nested to bring a parser down."""

import subprocess
import sys
from pathlib import Path

import pytest

from perdure.apps.files import YamlFile, parse_yaml
from perdure.local.config import ROOT

DEEP = ["a: " + "[" * 30_000, "a: " + "{b: " * 30_000, "- " * 30_000 + "x", "[" * 101 + "]" * 101]
READ = "import sys, pathlib, perdure.apps.files as y; print(y.read_yaml(pathlib.Path(sys.argv[1])))"


@pytest.mark.parametrize("text", DEEP)
def test_what_is_nested_too_deep_is_refused_with_its_line_and_the_process_lives(text: str, tmp_path: Path) -> None:
    path = tmp_path / "deep.yaml"
    path.write_text(text)
    command = [sys.executable, "-c", READ, str(path)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "line=1" in ran.stdout


def test_what_is_nested_as_deep_as_people_do_is_read() -> None:
    read = parse_yaml(Path("app.yaml"), "[" * 50 + "]" * 50)
    assert isinstance(read, YamlFile)
