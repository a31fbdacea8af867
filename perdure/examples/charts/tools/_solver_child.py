"""The solver's own process: it reads a program from stdin and writes the best model to stdout. It can be killed at any
moment, and ends with its parent process."""

import contextlib
import ctypes
import json
import resource
import signal
import sys


def main() -> None:
    """Solve once."""
    megabytes, seconds = int(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    import clingo

    program = sys.stdin.read()
    found: list[str] = []
    notes: list[str] = []

    def keep(model: clingo.Model) -> None:
        found[:] = [str(symbol) for symbol in model.symbols(shown=True)]

    try:
        control = clingo.Control(["--opt-mode=opt", "--seed=1"], logger=lambda code, text: notes.append(text))
        control.add("base", [], program)
        control.ground([("base", [])])
        result = control.solve(on_model=keep)
        outcome = "solved" if result.satisfiable else "unsatisfiable"
    except (MemoryError, RuntimeError) as error:
        outcome, found[:] = "failed", []
        notes.append(type(error).__name__)
    json.dump({"outcome": outcome, "atoms": found, "said": notes[:3]}, sys.stdout)


if __name__ == "__main__":
    main()
