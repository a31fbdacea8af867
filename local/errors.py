"""What the stack says when it cannot run: always one line that names the next step."""


class StackError(Exception):
    """The stack cannot start or go on; the message is the one line a person reads."""

    exit_code = 1
    """What the command line exits with."""


class AlreadyRunning(StackError):
    """Another supervisor holds this data folder."""

    exit_code = 2
