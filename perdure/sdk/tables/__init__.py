"""Tables and plans of work on them: read safely, profiled, and processed with Polars.

The same code runs a plan on the server and on a client machine that keeps its data. It needs the extra `charts`.
"""

from perdure.sdk.tables.execution import PlanResult, run_plan
from perdure.sdk.tables.plan import Plan, TableError, XmlFault, parse_xml, read_plan
from perdure.sdk.tables.reading import Column, profile_of, read_csv

__all__ = [
    "Column",
    "Plan",
    "PlanResult",
    "TableError",
    "XmlFault",
    "parse_xml",
    "profile_of",
    "read_csv",
    "read_plan",
    "run_plan",
]
