"""The filter, run as the kernel runs it: instruction by instruction over one call."""

import errno
import struct

import pytest

from perdure.activities.sandbox.jail import DENIED, UnknownArchitecture, deny_filter

X86, ARM, I386 = 0xC000003E, 0xC00000B7, 0x40000003
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
NEEDED = {
    "x86_64": {"read": 0, "write": 1, "mmap": 9, "execve": 59, "futex": 202, "exit_group": 231, "getrandom": 318},
    "aarch64": {"read": 63, "write": 64, "mmap": 222, "execve": 221, "futex": 98, "exit_group": 94, "getrandom": 278},
}
"""Without these no program runs."""
AUDIT = {"x86_64": X86, "aarch64": ARM}
CLONE = {"x86_64": 56, "aarch64": 220}


def answer(program: bytes, audit: int, number: int, first: int = 0) -> int:
    """What the kernel would do with a call."""
    data = struct.pack("<IIQQ", number, audit, 0, first)
    steps = list(struct.iter_unpack("<HBBI", program))
    place, held = 0, 0
    for _ in range(10_000):
        code, if_true, if_false, value = steps[place]
        if code == 0x06:
            return int(value)
        if code == 0x20:
            (held,) = struct.unpack_from("<I", data, value)
            place += 1
            continue
        holds = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[code]
        place += 1 + (if_true if holds else if_false)
    raise AssertionError("the program does not end")


@pytest.fixture(params=AUDIT)
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_named_calls_are_refused_and_needed_calls_are_allowed(architecture: str) -> None:
    program = deny_filter(architecture)
    columns = {name: pair[architecture != "x86_64"] for name, pair in DENIED.items()}
    named = {name: number for name, number in columns.items() if number is not None}
    for name, number in named.items():
        assert answer(program, AUDIT[architecture], number) == ERRNO | errno.EPERM, name
    for name, number in NEEDED[architecture].items():
        assert answer(program, AUDIT[architecture], number) == ALLOW, name
    assert not set(NEEDED[architecture].values()) & set(named.values())


def test_calls_from_424_on_are_unknown_and_those_of_another_table_kill(architecture: str) -> None:
    program = deny_filter(architecture)
    assert answer(program, AUDIT[architecture], 423) == ALLOW
    for number in (424, 425, 435, 450, 10_000):
        assert answer(program, AUDIT[architecture], number) == ERRNO | errno.ENOSYS
    for audit in {X86, ARM, I386} - {AUDIT[architecture]}:
        assert answer(program, audit, 0) == KILL
    if architecture == "x86_64":
        assert answer(program, X86, 0x40000000) == KILL


def test_clone_makes_threads_only(architecture: str) -> None:
    program = deny_filter(architecture)
    as_libc_does = 0x3D0F00
    assert answer(program, AUDIT[architecture], CLONE[architecture], as_libc_does) == ALLOW
    for flags in (0, 0x11, 0x10000000, 0x01200011):
        assert answer(program, AUDIT[architecture], CLONE[architecture], flags) == ERRNO | errno.EPERM


def test_the_filter_is_valid_for_the_kernel_and_an_unknown_processor_has_none() -> None:
    steps = list(struct.iter_unpack("<HBBI", deny_filter("x86_64")))
    assert len(steps) < 4096
    for place, (_, if_true, if_false, _) in enumerate(steps):
        assert place + 1 + max(if_true, if_false) <= len(steps)
    with pytest.raises(UnknownArchitecture):
        deny_filter("riscv64")
