"""The embedded stack: Postgres, Valkey, Temporal and the program as children of one foreground supervisor."""

from local.config import Program, StackConfig
from local.errors import AlreadyRunning, StackError
from local.parts import DataParts
from local.stack import embedded, run_stack

__all__ = ["AlreadyRunning", "DataParts", "Program", "StackConfig", "StackError", "embedded", "run_stack"]
