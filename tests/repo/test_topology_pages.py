"""The pages of topologies in docs/ show what runs: picture and edges are those of the spec, so an edit shows in all."""

import pytest

from perdure.graph.manifest import lines_of, manifest_of, mermaid_of
from perdure.graph.registry import names, spec
from perdure.graph.spec import Topology
from tests.repo.committed import files, text_of

PAGES = {name: f"docs/{name}.md" for name in names() if f"docs/{name}.md" in files()}


def faults(page: str, topology: Topology) -> list[str]:
    drawn = f"```mermaid\n{mermaid_of(manifest_of(topology)).rstrip()}\n```"
    found = [] if "```mermaid" not in page or drawn in page else [f"draw it anew:\n{drawn}"]
    edges = [
        (each.source, each.target, each.kind or each.form, each.condition or each.label) for each in lines_of(topology)
    ]
    head = ["| from | to | kind | condition |", "|---|---|---|---|"]
    table = "\n".join([*head, *(f"| {' | '.join(edge)} |" for edge in edges)])
    return found if "| from | to |" not in page or table in page else [*found, f"list the edges anew:\n{table}"]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_the_topology_that_runs(name: str) -> None:
    page = text_of(PAGES[name])
    assert not faults(page, spec(name)), PAGES[name]
    assert ("```mermaid" in page) is ("| from | to |" in page) is (name == "context_assembly"), "or nothing is compared"
