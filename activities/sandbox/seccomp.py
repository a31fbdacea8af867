"""The system calls that a jailed worker may not make, as a program for the kernel's filter.

Invariants:
- What is not named is allowed, so that a newer libc still runs; but every call numbered from 424 on (Linux 5.1 and
  later: io_uring, pidfds, the mount interface, clone3) answers ENOSYS, which libc takes for an old kernel.
- A call by another architecture's numbers kills the process; the 32-bit tables would be a way round this one.
- A thread may start, a process may not: `clone` without CLONE_THREAD is refused. So nothing can fork.
"""

import errno
import platform
import struct
from dataclasses import dataclass

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
