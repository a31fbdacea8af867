"""`make demo`, once, as a process: it holds, and it says so."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.acceptance.running import ROOT


@pytest.mark.timeout(330)
def test_the_demo_proves_each_of_its_claims_and_leaves_nothing_behind(tmp_path: Path) -> None:
    foreign = {"PERDURE_HOME": str(tmp_path / "untouched"), "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"}
    before = set(Path(tempfile.gettempdir()).glob("perdure-demo-*"))
    command, environ = [sys.executable, "-m", "perdure.cli.demo"], {**os.environ, **foreign}
    ended = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    told = ended.stdout
    assert ended.returncode == 0, told + ended.stderr
    assert ended.stderr == ""
    assert "FAILED" not in told and told.count("  held  ") >= 15
    kills = re.findall(r"kill -9 .*", told)
    assert len(kills) == 4
    pids = re.findall(r"\d+(?= \(worker)", " ".join(kills))
    assert len(pids) == len(set(pids)) == 7
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    for fact in (
        r"refunds .*1042 .*: 1\n",
        r"notes .*1042 .*: 1\n",
        r": outcome_unknown",
        r"m1 \w+ 2x, \w+ 1x, m2 \w+ 1x, \w+ 1x",
        r"1042 .* 74\.50 EUR",
        r'\| +"order": "1042"',
        r"/namespaces/default/workflows/turn:",
    ):
        assert re.search(fact, told), fact
    assert not (tmp_path / "untouched").exists()
    assert set(Path(tempfile.gettempdir()).glob("perdure-demo-*")) <= before
