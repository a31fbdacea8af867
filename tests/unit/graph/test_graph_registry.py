"""The registry and its compiled twin."""

import subprocess
import sys

import pytest

from perdure.contracts.errors import CallerError
from perdure.graph import registry
from perdure.graph.compile import topology


def test_every_registered_topology_is_compiled_once_and_shared() -> None:
    assert registry.names()
    assert all(topology(name) is topology(name) for name in registry.names())
    assert all(topology(name).topology is registry.spec(name) for name in registry.names())


def test_an_unknown_name_is_the_callers_error() -> None:
    with pytest.raises(CallerError) as refused:
        topology("nothing")
    assert refused.value.code == "unknown_topology"


def test_reading_a_topology_imports_no_langgraph() -> None:
    script = "import sys, perdure.graph.registry, perdure.graph.manifest; "
    script += "assert not any(m.startswith('langgraph') for m in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
