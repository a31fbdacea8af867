"""The simulated cluster: one file for several processes, one effect a key, faults that count down; and the script."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

from perdure.activities.providers.scripted import Script
from perdure.apps.mcp import read_servers
from perdure.examples.ops.cluster.faults import Fault, FaultKind, Faults
from perdure.examples.ops.cluster.server import ClusterServer
from perdure.examples.ops.cluster.state import Cluster, KeyReused, State
from tests.doubles.mcp_cluster import OPS

WRITER = """
import sys
from pathlib import Path
from perdure.examples.ops.cluster.state import State
state, who, same = State(Path(sys.argv[1])), sys.argv[2], sys.argv[3] == "same"
for number in range(25):
    state.make("note", {"number": number}, f"{'' if same else who}-{number}", lambda cluster: {"status": "ok"})
"""


def add_configmap(cluster: Cluster) -> Cluster:
    cluster["configmaps"]["shop/new"] = {}
    return {"status": "ok"}


@pytest.mark.parametrize(("keys", "effects"), [("own", 50), ("same", 25)])
def test_simultaneous_writers_lose_nothing_and_a_key_has_one_effect(tmp_path: Path, keys: str, effects: int) -> None:
    path = tmp_path / "cluster.json"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(who), keys], cwd=OPS.parents[2])
        for who in range(2)
    ]
    assert [writer.wait(60) for writer in writers] == [0] * 2
    assert len(State(path).effects("note")) == effects


def test_a_reader_never_sees_half_a_change(tmp_path: Path) -> None:
    state, stop = State(tmp_path / "cluster.json"), threading.Event()
    broken: list[Exception] = []

    def read() -> None:
        while not stop.is_set():
            try:
                assert "effects" in state.read()
            except Exception as error:
                broken.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(40):
        state.make("note", {"number": number}, None, add_configmap)
    stop.set()
    reader.join()
    assert not broken and len(state.effects()) == 40


def test_a_key_reused_for_another_call_or_a_failing_change_changes_nothing(tmp_path: Path) -> None:
    def fails(cluster: Cluster) -> Cluster:
        cluster["pods"].clear()
        raise LookupError

    state = State(tmp_path / "cluster.json")
    with pytest.raises(LookupError):
        state.make("note", {}, "k", fails)
    assert state.effects() == [] and state.read()["pods"]
    assert state.make("note", {"a": 1}, "k", add_configmap) == {"status": "ok"}
    assert state.make("note", {"a": 1}, "k", add_configmap) == {"status": "ok", "replayed": True}
    for tool, args in (("note", {"a": 2}), ("other", {"a": 1})):
        with pytest.raises(KeyReused):
            state.make(tool, args, "k", add_configmap)
    assert len(state.effects()) == 1


def test_a_fault_applies_to_its_tool_and_moment_and_counts_down(tmp_path: Path) -> None:
    faults = Faults(tmp_path / "faults.json")
    assert faults.take("a", "after") is None
    faults.arm(Fault(FaultKind.HANG, "a", times=2))
    faults.arm(Fault(FaultKind.ERROR, when="before"))
    assert faults.take("b", "after") is None
    assert [fault.kind for _ in range(2) if (fault := faults.take("a", "after"))] == [FaultKind.HANG, FaultKind.HANG]
    assert faults.take("a", "after") is None
    error = faults.take("b", "before")
    assert error is not None and error.kind is FaultKind.ERROR
    faults.arm(Fault(FaultKind.DIE))
    faults.clear()
    assert faults.take("a", "after") is None


async def test_the_agents_script_calls_only_existing_tools(tmp_path: Path) -> None:
    script = Script.model_validate(yaml.safe_load((OPS / "scripts" / "ops.yaml").read_text()))
    servers, problems = read_servers(OPS, ())
    assert not problems and servers["cluster"].trust_annotations
    offered = {f"cluster_{tool.name}" for tool in await ClusterServer(tmp_path).list_tools()} | {"load_toolset"}
    asked = {call.tool for rule in script.rules for call in rule.call}
    cluster = {f"cluster_k8s_{name}" for name in ("pods_list", "deployments_list", "deployment_restart")}
    assert asked == cluster | {"load_toolset"}
    assert asked <= offered
    assert {f"cluster_{name}" for name in servers["cluster"].tools} <= offered
