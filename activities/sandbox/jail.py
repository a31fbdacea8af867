"""The process that a worker runs in: bubblewrap, a system call filter, resource limits, and nothing to read.

Invariants:
- The environment is emptied before bubblewrap starts, not only inside: bubblewrap's own would be readable from the
  jail where /proc is there (`--clearenv` does not help), and /proc is not there either.
- The jail holds the interpreter, its libraries and its loader, each file bound read-only, and nothing else.
- What is inherited is closed: Python marks its own file descriptors, those that came from its parent it does not
  (measured: a pipe of the shell was open in the jail).
"""

import math
import os
import shlex
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from activities.sandbox.limits import MIB, Limits
from activities.sandbox.protocol import SandboxUnavailable
from activities.sandbox.seccomp import UnknownArchitecture, deny_filter

NOBODY = 65_534
INSIDE = Path("/monty")
"""Where the interpreter lies in the jail."""
_ADDRESS_SPACE_BYTES = 1_024 * MIB
"""The interpreter reserves 180 MiB before it does anything."""
_BESIDE_HEAP_BYTES = 32 * MIB
"""Measured: 17 MiB of it are the stacks of two threads, hardly touched."""


class Jail:
    """A launcher: a program that starts the interpreter, jailed, with the arguments that it is given.

    `demoted` gives up root before bubblewrap starts, so that the jail is nobody's outside as well.
    """

    def __init__(self, program: Path, ceiling: Limits, *, demoted: bool = False) -> None:
        """Write the launcher.

        Raises: SandboxUnavailable, where a program is missing or the processor is unknown.
        """
        self.cpu_seconds = cpu_seconds(ceiling)
        self.data_bytes = ceiling.memory_bytes + _BESIDE_HEAP_BYTES
        self.files = (INSIDE, *(Path(path) for path in _libraries(program)))
        """All that can be read in it."""
        try:
            rules = deny_filter()
        except UnknownArchitecture as unknown:
            raise SandboxUnavailable(str(unknown)) from unknown
        command = [*_demotion(demoted), _found("env"), "-i", *self._limits(), *self._walls(program)]
        self._open = [_in_memory(rules)]
        # A worker's own complaints go nowhere: the block could write there. Those of `--version` are the self-test's.
        # Ctrl-C reaches the whole process group of a terminal; this program decides when its workers end.
        script = (
            "#!/bin/sh\n"
            "trap '' INT\n"
            f"exec 9<{_path(self._open[0])} || exit 1\n"
            '[ "$1" = --version ] || exec 2>/dev/null\n'
            f'exec {shlex.join(command)} "$@"\n'
        )
        self._open.append(_in_memory(script.encode()))
        self.launcher = _path(self._open[1])
        """A script in memory: /tmp may forbid programs, is swept now and then, and keeps what a killed process left."""

    def close(self) -> None:
        """Forget the launcher; workers that run go on."""
        while self._open:
            os.close(self._open.pop())

    def _limits(self) -> list[str]:
        return [
            _found("prlimit"),
            f"--as={_ADDRESS_SPACE_BYTES + self.data_bytes}",
            f"--data={self.data_bytes}",
            f"--cpu={self.cpu_seconds}",
            "--nofile=64",
            "--core=0",
            "--fsize=0",
        ]

    def _walls(self, program: Path) -> list[str]:
        bound = [argument for path in self.files[1:] for argument in ("--ro-bind", os.path.realpath(path), str(path))]
        return [
            _found("bwrap"),
            *("--unshare-all", "--unshare-user", "--disable-userns"),
            *("--uid", str(NOBODY), "--gid", str(NOBODY), "--cap-drop", "ALL"),
            *("--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"),
            *bound,
            *("--ro-bind", os.path.realpath(program), str(INSIDE)),
            *("--chdir", "/", "--remount-ro", "/", "--seccomp", "9", "--", str(INSIDE)),
        ]


def cpu_seconds(ceiling: Limits) -> int:
    """The processor time of one worker over its life: the kernel's backstop, should the host hang."""
    return 6 + 2 * math.ceil(ceiling.wall_seconds)


def close_on_exec() -> None:
    """Mark every file descriptor that this process inherited, so that no child inherits it in turn."""
    listed = Path("/proc/self/fd")
    for number in [int(entry.name) for entry in listed.iterdir()] if listed.is_dir() else []:
        with suppress(OSError):  # the one that listed them is closed by now
            if number > 2:
                os.set_inheritable(number, False)


def demotable(program: Path) -> bool:
    """Whether this process may give up root, and nobody could still read `program`."""
    path = Path(os.path.realpath(program))
    return (
        os.geteuid() == 0
        and shutil.which("setpriv") is not None
        and all(folder.stat().st_mode & 0o001 for folder in path.parents)
        and path.stat().st_mode & 0o005 == 0o005
    )


def _in_memory(content: bytes) -> int:
    """A file of no folder, open for reading only: what is open for writing cannot be run."""
    written = os.memfd_create("perdure-jail")
    try:
        os.write(written, content)
        return os.open(f"/proc/self/fd/{written}", os.O_RDONLY)
    finally:
        os.close(written)


def _path(descriptor: int) -> Path:
    return Path(f"/proc/{os.getpid()}/fd/{descriptor}")


def _demotion(demoted: bool) -> list[str]:
    if not demoted:
        return []
    return [_found("setpriv"), f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


def _found(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        package = {"bwrap": "bubblewrap", "env": "coreutils", "ldd": "libc-bin"}.get(name, "util-linux")
        raise SandboxUnavailable(f"{name} is not installed; on Debian: apt-get install {package}")
    return path


def _libraries(program: Path) -> list[str]:
    """What the loader would load for `program`, the loader included."""
    listed = subprocess.run([_found("ldd"), str(program)], capture_output=True, text=True, timeout=10)
    words = [line.split("(")[0].split() for line in listed.stdout.splitlines()]
    return sorted({line[-1] for line in words if line and line[-1].startswith("/")})
