"""The jail itself, tried by programs that no interpreter holds back, and the self-test, tried by jails with a hole."""

import errno
import os
import platform
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from perdure.activities.sandbox import Limits, SandboxUnavailable
from perdure.activities.sandbox.jail import DENIED, Jail, demotable
from perdure.activities.sandbox.jail_check import jail_faults
from perdure.activities.sandbox.selection import _interpreter
from tests.sandbox.conftest import reached_by

OPENAT, EXECVE, CLONE, MKDIR, GETUID, KILL, GETPPID = 257, 59, 56, 83, 102, 62, 110
CLONE_THREAD = 0x00010000
AT_FDCWD = -100
CREATE = 0o101
X32 = 0x40000000
INT_80 = b"\xb8\x14\0\0\0\xcd\x80"
"""getpid by the 32-bit table: mov eax, 20; int 0x80."""
native = pytest.mark.skipif(platform.machine() != "x86_64", reason="the probe is written in machine code for x86-64")
_BASE = 0x400000
_HEADERS = 64 + 56
_ARGUMENT_OPCODES = (b"\xbf", b"\xbe", b"\xba", b"\x41\xba", b"\x41\xb8", b"\x41\xb9")
"""mov to edi, esi, edx, r10d, r8d, r9d."""


@dataclass(frozen=True, slots=True)
class Call:
    """A system call by its number; a text among its arguments stands for its address."""

    number: int
    arguments: tuple[int | str, ...] = ()


def write_probe(path: Path, calls: Sequence[Call], ending: bytes = b"") -> None:
    """Writes a program without libc that makes system calls, runs `ending` and writes the results."""
    texts = [argument for call in calls for argument in call.arguments if isinstance(argument, str)]
    size = len(_code(calls, dict.fromkeys(texts, 0), ending))
    places: dict[str, int] = {}
    data = b""
    for text in texts:
        places[text] = _BASE + _HEADERS + size + len(data)
        data += text.encode() + b"\0"
    body = _code(calls, places, ending) + data
    length = _HEADERS + len(body)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", *(b"\x7fELF\x02\x01\x01", 2, 62, 1, _BASE + _HEADERS, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, length, length, 0x1000)
    path.write_bytes(header + segment + body)
    path.chmod(0o755)


def answers(output: bytes) -> list[int]:
    """The result of each call in order: for an error its negative number."""
    return list(reversed(struct.unpack(f"<{len(output) // 8}q", output)))


def _code(calls: Sequence[Call], places: dict[str, int], ending: bytes) -> bytes:
    code = b""
    for call in calls:
        for opcode, argument in zip(_ARGUMENT_OPCODES, (*call.arguments, *[0] * 6), strict=False):
            value = places[argument] if isinstance(argument, str) else argument
            code += opcode + struct.pack("<I", value & 0xFFFFFFFF)
        code += b"\xb8" + struct.pack("<I", call.number) + b"\x0f\x05\x50"  # mov eax; syscall; push rax
    write = b"\xb8\x01\0\0\0\xbf\x01\0\0\0\x48\x89\xe6\xba" + struct.pack("<I", 8 * len(calls)) + b"\x0f\x05"
    leave = b"\xb8\x3c\0\0\0\x31\xff\x0f\x05"
    return code + ending + write + leave


@pytest.fixture(params=[False, True], ids=["as this user", "as nobody"])
def as_nobody(request: pytest.FixtureRequest) -> bool:
    """Both forms if this user is root; else the plain one twice."""
    return bool(request.param) and os.geteuid() == 0


def jailed_run(program: Path, as_nobody: bool = False) -> subprocess.CompletedProcess[bytes]:
    jail = Jail(program, Limits(), demoted=as_nobody)
    try:
        return subprocess.run([jail.launcher], capture_output=True, timeout=20)
    finally:
        jail.close()


def call_results(calls: Sequence[Call], as_nobody: bool = False) -> list[int]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # pytest's own folders are closed to nobody
        write_probe(Path(folder, "probe"), calls)
        ran = jailed_run(Path(folder, "probe"), as_nobody)
    assert ran.returncode == 0
    return answers(ran.stdout)


@native
def test_denied_and_unknown_system_calls_and_new_processes_are_refused(as_nobody: bool) -> None:
    named = {name: pair[0] for name, pair in DENIED.items() if pair[0] is not None} | {"clone": CLONE}
    newer = dict.fromkeys(range(424, 500), -errno.ENOSYS)
    *told, thread = call_results(
        [*map(Call, named.values()), *map(Call, newer), Call(CLONE, (CLONE_THREAD,))], as_nobody
    )
    assert dict(zip((*named, *newer), told, strict=True)) == dict.fromkeys(named, -errno.EPERM) | newer
    assert thread == -errno.EINVAL, "the kernel itself wants more flags with it: the filter let it through"


@native
def test_no_file_of_the_host_is_visible_and_none_can_be_created(as_nobody: bool) -> None:
    absent = ["/etc/passwd", "/proc/self/environ", "/proc/1/environ", "/dev/null", "/tmp", "/bin/sh", __file__]
    calls = [Call(OPENAT, (AT_FDCWD, path, 0)) for path in absent]
    calls += [Call(EXECVE, ("/bin/sh",)), Call(OPENAT, (AT_FDCWD, "/made", CREATE, 0o600)), Call(MKDIR, ("/made",))]
    *missing, shell, file, folder = call_results(calls, as_nobody)
    assert missing == [-errno.ENOENT] * len(absent)
    assert (shell, file, folder) == (-errno.ENOENT, -errno.EROFS, -errno.EROFS)


@native
def test_a_block_runs_as_nobody_and_sees_no_other_process(as_nobody: bool) -> None:
    user, parent, every = call_results([Call(GETUID), Call(GETPPID), Call(KILL, (-1, 0))], as_nobody)
    assert (user, parent, every) == (65_534, 0, -errno.ESRCH)


@native
@pytest.mark.parametrize("how", ["the 32-bit table", "the x32 table"])
def test_a_system_call_of_another_abi_kills_the_process(tmp_path: Path, how: str) -> None:
    calls, ending = ([], INT_80) if how == "the 32-bit table" else ([Call(X32 | 39)], b"")
    write_probe(tmp_path / "probe", calls, ending)
    assert jailed_run(tmp_path / "probe").returncode != 0
    write_probe(tmp_path / "harmless", [Call(39)])
    assert jailed_run(tmp_path / "harmless").returncode == 0


@pytest.fixture
def jail() -> Iterator[Jail]:
    made = Jail(_interpreter(), Limits())
    yield made
    made.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up root")
def test_root_is_dropped_where_possible() -> None:
    assert demotable(Path("/bin/sh"))
    jail = Jail(Path("/bin/sh"), Limits(), demoted=True)
    assert "--reuid=65534" in jail.launcher.read_text()
    jail.close()


def test_a_program_that_user_nobody_cannot_read_does_not_run_as_nobody(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o700)
    program = tmp_path / "closed" / "program"
    write_probe(program, [])
    assert not demotable(program)


@pytest.mark.parametrize(("taken", "put"), [
    ("--seccomp 9", ""), ("--unshare-all", "--unshare-pid --unshare-ipc --unshare-uts --unshare-cgroup"),
    ("--unshare-all", "--unshare-net --unshare-pid --unshare-uts --unshare-cgroup"),
    ("--remount-ro /", "--ro-bind /etc /etc --remount-ro /"), ("--remount-ro /", ""),
    ("--clearenv", "--setenv LEFT over"), ("--cap-drop ALL", "--cap-add ALL"), ("--cpu=10", "--cpu=1000"),
    ("--fsize=0", "--fsize=1000000"), ("exec 9<", "exec 8</etc/passwd 9<"), ("bwrap", "bwrop"),
    ("--disable-userns", "--no-such-flag"),
])  # fmt: skip
def test_a_jail_with_a_hole_fails_the_check(jail: Jail, taken: str, put: str) -> None:
    whole = jail.launcher.read_text()
    assert taken in whole
    jail.launcher.write_text(whole.replace(taken, put))
    assert jail_faults(jail, Limits())


def test_a_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = _interpreter()
    monkeypatch.setenv("PATH", reached_by(tmp_path, ("env", "prlimit", "ldd")))
    for package in ("bubblewrap", "util-linux"):
        with pytest.raises(SandboxUnavailable) as raised:
            Jail(program, Limits())
        assert package in str(raised.value)
        (tmp_path / "prlimit").unlink(missing_ok=True)
