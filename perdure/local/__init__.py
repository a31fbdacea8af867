"""The embedded stack: Postgres, Valkey, Temporal and the program as children of one foreground supervisor."""

from perdure.local.config import Program, StackConfig
from perdure.local.data_dir import AlreadyRunning, StackError
from perdure.local.services import DataParts
from perdure.local.stack import embedded, run_stack

__all__ = ["AlreadyRunning", "DataParts", "Program", "StackConfig", "StackError", "embedded", "run_stack"]
