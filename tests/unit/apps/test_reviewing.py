"""An agent whose gated calls nobody could ever decide on is not loaded, and its author finds the line."""

from pathlib import Path

import pytest

from perdure.apps import Engine, load_app
from tests.unit.apps.problems import is_at

AGENT = "id: helper\ntitle: Helper\ntopology: skill_pipeline\napprovals:\n"


def told(folder: Path, approvals: str) -> list[str]:
    """The problems of an app with one agent of these `approvals:`."""
    agents = folder / "agents"
    agents.mkdir()
    (agents / "helper.yaml").write_text(AGENT + approvals)
    app = load_app(folder, Engine(topologies=("skill_pipeline",)))
    assert bool(app.problems) is not bool(app.agents)
    return [str(problem).replace(f"{folder}/agents/", "") for problem in app.problems]


@pytest.mark.parametrize(
    ("approvals", "line", "names"),
    [
        ("  quorum: 1\n  reviewer_role: reviewr\n", "6", "reviewr reviewer"),
        ("  escalation_role: boss\n", "5", "boss admin requester"),
        ("  reviewers:\n    - ann\n    - Bob Smith\n", "7", "Bob Smith"),
        ('  reviewers: ["ann\\n"]\n', "5", "ann"),
        ("  fallback_reviewer: Carl\n", "5", "Carl"),
        (
            "  expires_seconds: 3600\n  fallback_reviewer: carl\n",
            "4",
            "86400 3600",
        ),
        (
            "  expires_seconds: 60\n  fallback_reviewer: carl\n  fallback_after_seconds: 60\n",
            "7",
            "60",
        ),
        (
            "  expires_seconds: 60\n  on_timeout: escalate\n  fallback_reviewer: carl\n  fallback_after_seconds: 120\n",
            "8",
            "120",
        ),
        ("  reviewers: [ann]\n  quorum: 2\n", "4", ""),
    ],
)
def test_a_policy_that_nobody_can_satisfy_is_refused_with_its_line(
    tmp_path: Path, approvals: str, line: str, names: str
) -> None:
    (problem,) = told(tmp_path, approvals)
    assert is_at(problem, f"helper.yaml:{line} {names}")


@pytest.mark.parametrize(
    "approvals",
    [
        "  reviewers: [ann, bob.smith]\n  quorum: 2\n  fallback_reviewer: carl\n",
        "  reviewer_role: admin\n  escalation_role: reviewer\n",
        "  expires_seconds: 60\n",
        "  expires_seconds: 60\n  on_timeout: escalate\n  fallback_reviewer: c\n  fallback_after_seconds: 119\n",
    ],
)
def test_a_policy_that_somebody_can_satisfy_is_loaded(tmp_path: Path, approvals: str) -> None:
    assert told(tmp_path, approvals) == []


@pytest.mark.parametrize(
    ("approvals", "seconds"), [("  quorum: 1\n", 60), ("  expires_seconds: 90\n", 90)], ids=["unsaid", "said"]
)
def test_a_deployments_deadline_holds_for_agents_that_say_none(tmp_path: Path, approvals: str, seconds: int) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "helper.yaml").write_text(AGENT + approvals)
    (agent,) = load_app(tmp_path, Engine(topologies=("skill_pipeline",), expires_seconds=60)).agents
    assert agent.approvals.expires_seconds == seconds


def test_a_fallback_that_the_deployments_deadline_forestalls_is_refused(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "helper.yaml").write_text(AGENT + "  fallback_reviewer: carl\n")
    app = load_app(tmp_path, Engine(topologies=("skill_pipeline",), expires_seconds=60))
    assert app.agents == () and ["60" in each.message for each in app.problems] == [True]


def test_what_is_wrong_in_its_form_is_told_once(tmp_path: Path) -> None:
    (problem,) = told(tmp_path, "  reviewer_role: boss\n  quorum: none\n")
    assert is_at(problem, "helper.yaml:6 approvals.quorum")
