"""Tables and plans of work on them: read safely, profiled, carried out with Polars where the data is.

The same code runs a plan on the server and on the machine of whoever keeps the data. It needs the extra `charts`.
"""

from perdure.tables.execution import Ran, run_plan
from perdure.tables.plan import Plan, read_plan
from perdure.tables.profile import Column, profile_of
from perdure.tables.reading import read_csv
from perdure.tables.trouble import TableTrouble
from perdure.tables.xml import XmlFault, checked_xml

__all__ = [
    "Column",
    "Plan",
    "Ran",
    "TableTrouble",
    "XmlFault",
    "checked_xml",
    "profile_of",
    "read_csv",
    "read_plan",
    "run_plan",
]
