"""`python -m perdure.local` provides a Temporal server program, with progress, and prints its path.

It is for setup steps (`make`), so that the minutes of a first build pass there and not inside a test.
"""

import asyncio
import os
import sys

from perdure.local.config import own_environ
from perdure.local.data_dir import StackError
from perdure.local.output import Console
from perdure.local.services import external_temporal, temporal_sources
from perdure.local.temporal_binary import find_temporal


def main() -> int:
    """Returns the exit code; prints one line on stderr if no server can be obtained."""
    try:
        environ = own_environ()
        console = Console(sys.stdout, environ)
        outside = external_temporal(environ)
        if outside is not None:
            console.say(f"Temporal runs at {outside.address}, so no embedded server is needed")
            return 0
        program = asyncio.run(find_temporal(environ, console, temporal_sources(environ)))
    except StackError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    console.say(str(program.path))
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # The SDK's library may crash in the interpreter's own shutdown (sdk-python#300).
    os._exit(code)
