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
def test_the_demo_holds_all_it_claims_and_leaves_nothing_behind(tmp_path: Path) -> None:
    foreign = {"PERDURE_HOME": str(tmp_path / "untouched"), "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"}
    before = set(Path(tempfile.gettempdir()).glob("perdure-demo-*"))
    ended = subprocess.run(
        [sys.executable, "-m", "perdure.cli.demo"],
        cwd=ROOT,
        env={**os.environ, **foreign},
        capture_output=True,
        text=True,
    )
    told = ended.stdout
    assert ended.returncode == 0, told + ended.stderr
    assert ended.stderr == ""
    assert "FAILED" not in told and told.count("  held  ") >= 15

    kills = re.findall(r"kill -9 (.*): (.*)", told)
    assert [why for _, why in kills] == [
        "in the middle of a sentence",
        "nobody is left who knows of this turn",
        "done outside, not recorded inside",
        "the note is out, and nobody here knows",
    ]
    pids = re.findall(r"\d+(?= \(worker)", " ".join(killed for killed, _ in kills))
    assert len(pids) == len(set(pids)) == 7
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]

    for fact in (
        r"refunds of order 1042 +payments service's own ledger: 1",
        r"notes for order 1042 +payments service's own ledger: 1",
        r"asked for twice, under one key +payments service: 2 requests, 1 key",
        r"the lost answer was not guessed +event log: outcome_unknown",
        r"m1 asked 2x, settled 1x, m2 asked 1x, settled 1x",
        r"answer: Order 1042 was refunded: 74\.50 EUR",
        r"answer: The note was sent: reviewer checked it",
        r'\| +"order": "1042"',
        r"/namespaces/default/workflows/turn:",
    ):
        assert re.search(fact, told), fact
    assert not (tmp_path / "untouched").exists()
    assert set(Path(tempfile.gettempdir()).glob("perdure-demo-*")) <= before
