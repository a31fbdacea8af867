"""The process that a worker runs in: bubblewrap, a system call filter, resource limits, and nothing to read.

Invariants:
- The environment is emptied before bubblewrap starts, not only inside: bubblewrap's own would be readable from the
  jail where /proc is there (`--clearenv` does not help), and /proc is not there either.
- The jail holds the interpreter, its libraries and its loader, each file bound read-only, and nothing else.
- What is inherited is closed: Python marks its own file descriptors, those that came from its parent it does not
  (measured: a pipe of the shell was open in the jail).
"""

import errno
import math
import os
import platform
import shlex
import shutil
import struct
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from perdure.activities.sandbox.protocol import MIB, Limits, SandboxUnavailable

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


# --- The system calls that a jailed worker may not make, as a program for the kernel's filter.
# Invariants:
# - What is not named is allowed, so that a newer libc still runs; but every call numbered from 424 on (Linux 5.1 and
#   later: io_uring, pidfds, the mount interface, clone3) answers ENOSYS, which libc takes for an old kernel.
# - A call by another architecture's numbers kills the process; the 32-bit tables would be a way round this one.
# - A thread may start, a process may not: `clone` without CLONE_THREAD is refused. So nothing can fork.

_LOAD_WORD = 0x20
_JUMP_EQUAL = 0x15
_JUMP_NOT_BELOW = 0x35
_JUMP_ANY_BIT = 0x45
_RETURN = 0x06
_AT_NUMBER, _AT_ARCHITECTURE, _AT_FIRST_ARGUMENT = 0, 4, 16
"""Offsets in the kernel's `struct seccomp_data`; the argument's lower half, little-endian."""
_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_REFUSE = 0x00050000 | errno.EPERM
_UNKNOWN = 0x00050000 | errno.ENOSYS
_CLONE_THREAD = 0x00010000
_FIRST_RECENT = 424
"""From here on all architectures number alike."""

DENIED: dict[str, tuple[int | None, int | None]] = {
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "fork": (57, None),
    "vfork": (58, None),
    "execveat": (322, 281),
    # namespaces and mounts
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    # network and what passes between processes
    "socket": (41, 198),
    "socketpair": (53, 199),
    "bind": (49, 200),
    "connect": (42, 203),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semctl": (66, 191),
    "msgget": (68, 186),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    # doors into the kernel
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "memfd_create": (319, 279),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "personality": (135, 92),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "lookup_dcookie": (212, 18),
    "mbind": (237, 235),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "set_mempolicy": (238, 237),
    # the machine
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
}
"""By name: the number on x86-64 and on aarch64; None where that architecture has no such call."""


@dataclass(frozen=True, slots=True)
class _Architecture:
    audit: int
    """What the kernel calls it (`AUDIT_ARCH_...`)."""
    column: int
    """Which number of DENIED is its own."""
    clone: int
    foreign_from: int | None
    """Numbers from here on belong to another table (x32 on x86-64)."""


_ARCHITECTURES = {
    "x86_64": _Architecture(0xC000003E, 0, 56, 0x40000000),
    "aarch64": _Architecture(0xC00000B7, 1, 220, None),
}


class UnknownArchitecture(Exception):
    """No filter is known for this machine's processor."""


def deny_filter(machine: str | None = None) -> bytes:
    """The filter for bubblewrap's `--seccomp`, of this machine or of the one named.

    Raises: UnknownArchitecture.
    """
    name = machine or platform.machine()
    architecture = _ARCHITECTURES.get(name)
    if architecture is None:
        raise UnknownArchitecture(f"no system call filter is known for {name}")
    numbers = sorted({pair[architecture.column] for pair in DENIED.values()} - {None}, key=lambda number: number or 0)
    program = [
        _step(_LOAD_WORD, _AT_ARCHITECTURE),
        _step(_JUMP_EQUAL, architecture.audit, if_true=1),
        _step(_RETURN, _KILL),
        _step(_LOAD_WORD, _AT_NUMBER),
    ]
    if architecture.foreign_from is not None:
        program += [_step(_JUMP_NOT_BELOW, architecture.foreign_from, if_false=1), _step(_RETURN, _KILL)]
    program += [_step(_JUMP_NOT_BELOW, _FIRST_RECENT, if_false=1), _step(_RETURN, _UNKNOWN)]
    for number in numbers:
        assert number is not None
        program += [_step(_JUMP_EQUAL, number, if_false=1), _step(_RETURN, _REFUSE)]
    program += [
        _step(_JUMP_EQUAL, architecture.clone, if_false=3),
        _step(_LOAD_WORD, _AT_FIRST_ARGUMENT),
        _step(_JUMP_ANY_BIT, _CLONE_THREAD, if_true=1),
        _step(_RETURN, _REFUSE),
        _step(_RETURN, _ALLOW),
    ]
    return b"".join(program)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """One instruction: jumps count the instructions to leave out."""
    return struct.pack("<HBBI", code, if_true, if_false, value)
