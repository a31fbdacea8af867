"""The jail of a worker process: bubblewrap, a system call filter and resource limits, and only the interpreter's files.

Invariants:
- The environment is emptied before bubblewrap starts, not only inside the jail. Otherwise the jail could read
  bubblewrap's own environment if /proc existed (`--clearenv` does not help). /proc does not exist in the jail either.
- The jail contains only the interpreter, its libraries and its loader, each bound read-only.
- Inherited file descriptors are closed. Python marks its own, but not those from its parent (measured: a pipe of the
  shell was open in the jail).
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
INTERPRETER = Path("/monty")
"""The interpreter's path in the jail."""
_ADDRESS_SPACE_BYTES = 1_024 * MIB
"""The interpreter reserves 180 MiB at its start."""
_OVERHEAD_BYTES = 32 * MIB
"""Measured: 17 MiB of this are the stacks of two threads, which are hardly used."""
_LOAD_WORD = 0x20
_JUMP_EQUAL = 0x15
_JUMP_NOT_BELOW = 0x35
_JUMP_ANY_BIT = 0x45
_RETURN = 0x06
_AT_NUMBER, _AT_ARCHITECTURE, _AT_FIRST_ARGUMENT = 0, 4, 16
"""Offsets in the kernel's `struct seccomp_data`. The argument's offset is its lower half, little-endian."""
_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_REFUSE = 0x00050000 | errno.EPERM
_UNKNOWN = 0x00050000 | errno.ENOSYS
_CLONE_THREAD = 0x00010000
_FIRST_RECENT = 424
"""The first number from which all architectures use the same numbers."""
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
    # network and communication between processes
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
    # interfaces to the kernel
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
"""Maps each call to its numbers on x86-64 and aarch64; None if the architecture does not have the call."""


class Jail:
    """A program that starts the interpreter in a jail and passes its arguments on.

    `demoted` gives up root before bubblewrap starts, so that the jail is unprivileged outside as well.
    """

    def __init__(self, program: Path, ceiling: Limits, *, demoted: bool = False) -> None:
        """Writes the launcher.

        Raises: SandboxUnavailable if a program is missing or the processor is unknown.
        """
        self.cpu_seconds = cpu_seconds(ceiling)
        self.data_bytes = ceiling.memory_bytes + _OVERHEAD_BYTES
        self.files = (INTERPRETER, *(Path(path) for path in _libraries(program)))
        """All files that are readable in the jail."""
        try:
            rules = deny_filter()
        except UnknownArchitecture as unknown:
            raise SandboxUnavailable(str(unknown)) from unknown
        command = [*_demotion(demoted), _program_path("env"), "-i", *self._limits(), *self._bubblewrap(program)]
        self._descriptors = [_memory_file(rules)]
        # A worker's own messages are discarded, because the block could write there. Those of `--version` are for the
        # self-test. Ctrl-C reaches the whole process group of a terminal; this program decides when its workers end.
        script = (
            "#!/bin/sh\n"
            "trap '' INT\n"
            f"exec 9<{_descriptor_path(self._descriptors[0])} || exit 1\n"
            '[ "$1" = --version ] || exec 2>/dev/null\n'
            f'exec {shlex.join(command)} "$@"\n'
        )
        self._descriptors.append(_memory_file(script.encode()))
        self.launcher = _descriptor_path(self._descriptors[1])
        """A script in memory: /tmp may forbid programs, is cleaned from time to time, and keeps the files of a killed
        process."""

    def close(self) -> None:
        """Closes the launcher; running workers continue."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _limits(self) -> list[str]:
        return [
            _program_path("prlimit"),
            f"--as={_ADDRESS_SPACE_BYTES + self.data_bytes}",
            f"--data={self.data_bytes}",
            f"--cpu={self.cpu_seconds}",
            "--nofile=64",
            "--core=0",
            "--fsize=0",
        ]

    def _bubblewrap(self, program: Path) -> list[str]:
        bound = [argument for path in self.files[1:] for argument in ("--ro-bind", os.path.realpath(path), str(path))]
        return [
            _program_path("bwrap"),
            *("--unshare-all", "--unshare-user", "--disable-userns"),
            *("--uid", str(NOBODY), "--gid", str(NOBODY), "--cap-drop", "ALL"),
            *("--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"),
            *bound,
            *("--ro-bind", os.path.realpath(program), str(INTERPRETER)),
            *("--chdir", "/", "--remount-ro", "/", "--seccomp", "9", "--", str(INTERPRETER)),
        ]


def cpu_seconds(ceiling: Limits) -> int:
    """Returns the CPU time limit of one worker's life. It is the kernel's safeguard if this program hangs."""
    return 6 + 2 * math.ceil(ceiling.wall_seconds)


def close_on_exec() -> None:
    """Marks every inherited file descriptor, so that child processes do not inherit it."""
    descriptors = Path("/proc/self/fd")
    for number in [int(entry.name) for entry in descriptors.iterdir()] if descriptors.is_dir() else []:
        with suppress(OSError):  # the descriptor of this listing is closed by now
            if number > 2:
                os.set_inheritable(number, False)


def demotable(program: Path) -> bool:
    """Returns whether this process can give up root and still read `program` as an unprivileged user."""
    path = Path(os.path.realpath(program))
    return (
        os.geteuid() == 0
        and shutil.which("setpriv") is not None
        and all(folder.stat().st_mode & 0o001 for folder in path.parents)
        and path.stat().st_mode & 0o005 == 0o005
    )


def _memory_file(content: bytes) -> int:
    """Creates an anonymous file that is open for reading only: a file that is open for writing cannot be run."""
    descriptor = os.memfd_create("perdure-jail")
    try:
        os.write(descriptor, content)
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
    finally:
        os.close(descriptor)


def _descriptor_path(descriptor: int) -> Path:
    return Path(f"/proc/{os.getpid()}/fd/{descriptor}")


def _demotion(demoted: bool) -> list[str]:
    if not demoted:
        return []
    return [_program_path("setpriv"), f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


def _program_path(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        package = {"bwrap": "bubblewrap", "env": "coreutils", "ldd": "libc-bin"}.get(name, "util-linux")
        raise SandboxUnavailable(f"{name} is not installed; on Debian, run: apt-get install {package}")
    return path


def _libraries(program: Path) -> list[str]:
    """Returns the files that the loader would load for `program`, including the loader."""
    listed = subprocess.run([_program_path("ldd"), str(program)], capture_output=True, text=True, timeout=10)
    words = [line.split("(")[0].split() for line in listed.stdout.splitlines()]
    return sorted({line[-1] for line in words if line and line[-1].startswith("/")})


@dataclass(frozen=True, slots=True)
class _Architecture:
    audit: int
    """The kernel's identifier (`AUDIT_ARCH_...`)."""
    column: int
    """The index of the architecture's number in DENIED."""
    clone: int
    foreign_from: int | None
    """Numbers from here on belong to another table (x32 on x86-64)."""


_ARCHITECTURES = {
    "x86_64": _Architecture(0xC000003E, 0, 56, 0x40000000),
    "aarch64": _Architecture(0xC00000B7, 1, 220, None),
}


class UnknownArchitecture(Exception):
    """No filter exists for this machine's processor."""


def deny_filter(machine: str | None = None) -> bytes:
    """Returns the filter for bubblewrap's `--seccomp`, for `machine` or for the current machine.

    It names the system calls that a jailed worker must not make. Invariants:

    - Calls that are not named are allowed, so that a newer libc still runs. But every call numbered from 424 on (Linux
      5.1 and later: io_uring, pidfds, the mount interface, clone3) returns ENOSYS, so that libc assumes an old kernel.
    - A call with another architecture's numbers kills the process, because the 32-bit tables would bypass this filter.
    - Threads can start, processes cannot: `clone` without CLONE_THREAD is refused. So nothing can fork.

    Raises: UnknownArchitecture.
    """
    name = machine or platform.machine()
    architecture = _ARCHITECTURES.get(name)
    if architecture is None:
        raise UnknownArchitecture(f"no system call filter exists for {name}")
    numbers = sorted({pair[architecture.column] for pair in DENIED.values()} - {None}, key=lambda number: number or 0)
    program = [
        _instruction(_LOAD_WORD, _AT_ARCHITECTURE),
        _instruction(_JUMP_EQUAL, architecture.audit, if_true=1),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD_WORD, _AT_NUMBER),
    ]
    if architecture.foreign_from is not None:
        program += [_instruction(_JUMP_NOT_BELOW, architecture.foreign_from, if_false=1), _instruction(_RETURN, _KILL)]
    program += [_instruction(_JUMP_NOT_BELOW, _FIRST_RECENT, if_false=1), _instruction(_RETURN, _UNKNOWN)]
    for number in numbers:
        assert number is not None
        program += [_instruction(_JUMP_EQUAL, number, if_false=1), _instruction(_RETURN, _REFUSE)]
    program += [
        _instruction(_JUMP_EQUAL, architecture.clone, if_false=3),
        _instruction(_LOAD_WORD, _AT_FIRST_ARGUMENT),
        _instruction(_JUMP_ANY_BIT, _CLONE_THREAD, if_true=1),
        _instruction(_RETURN, _REFUSE),
        _instruction(_RETURN, _ALLOW),
    ]
    return b"".join(program)


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Encodes one instruction. The jumps count the instructions to skip."""
    return struct.pack("<HBBI", code, if_true, if_false, value)
