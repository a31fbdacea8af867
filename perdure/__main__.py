"""`perdure`, also `python -m perdure`: runs one command and leaves with its exit code.

0 done, 2 usage, 4 not found, 5 already decided, 6 expired, 1 anything else.
"""

import os
import signal
import sys

signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while it imports ends it, without a traceback

from perdure.cli.app import app  # noqa: E402
from perdure.cli.terminal import print_api_error  # noqa: E402
from perdure.client import ApiError  # noqa: E402
from perdure.core.text import escape_terminal, is_clean  # noqa: E402
from perdure.local.data_dir import StackError  # noqa: E402


def main() -> None:
    """Runs the command, flushes its output and exits without the interpreter's own shutdown, in which Temporal's core
    may crash (temporalio/sdk-python#300)."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code = run(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 1  # the reader of a pipe has gone
    os._exit(code)


def run(arguments: list[str]) -> int:
    """Runs one command and returns its exit code."""
    if not all(is_clean(argument) for argument in arguments):
        sys.stderr.write("An argument contains a NUL character or is not valid UTF-8\n")
        return 2
    try:
        app(arguments, prog_name="perdure")
    except SystemExit as exit_:
        if isinstance(exit_.code, str):
            sys.stderr.write(escape_terminal(exit_.code) + "\n")
            return 1
        return exit_.code or 0
    except StackError as error:
        sys.stderr.write(escape_terminal(str(error)) + "\n")
        return error.exit_code
    except ApiError as error:
        return print_api_error(error, as_json="--json" in arguments)
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    main()
