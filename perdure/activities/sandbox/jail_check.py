"""The self-test of a jail: the kernel's facts about a worker, and whether a worker can be stopped. A jail with any
fault is not used.

The facts are read from outside, so that nothing inside the jail needs to be trusted.
"""

import os
import re
import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from perdure.activities.sandbox.jail import Jail
from perdure.activities.sandbox.protocol import FaultKind, Limits, SandboxUnavailable
from perdure.activities.sandbox.worker import GRACE_SECONDS, Worker, WorkerSettings

_SEPARATE_NAMESPACES = ("ipc", "mnt", "net", "pid", "user", "uts")
"""Namespaces that a worker must not share with this process."""
_EXPECTED_STATUS = {
    "Seccomp": "2",
    "NoNewPrivs": "1",
    **{f"Cap{each}": "0" * 16 for each in ("Inh", "Prm", "Eff", "Bnd", "Amb")},
}
"""Expected values in /proc/<pid>/status: a filter is active, programs cannot gain rights, and there are none."""
_HARMLESS_TARGET = re.compile(r"(pipe:|anon_inode:|/dev/null\Z)")
_LOOP_CODE = "def run() -> None:\n    while True:\n        pass\n"
_LOOP_SECONDS = 0.1
_CANARY = "PERDURE_SANDBOX_CANARY"
_PEEK_CODE = """
import os
def run(names: list[str]) -> list[str]:
    seen = []
    for name in names:
        try:
            seen.append(str(os.getenv(name)))
        except Exception:
            pass
        try:
            seen.append(open(name).read())
        except Exception:
            pass
    return seen
"""


def jail_faults(jail: Jail, ceiling: Limits) -> list[str]:
    """Returns why a jail is not secure; empty if it is. Blocks the thread for about 0.2 s."""
    start_error = _start_error(jail)
    if start_error is not None:
        return [start_error]
    os.environ[_CANARY] = canary = secrets.token_hex(16)
    try:
        worker = Worker(WorkerSettings(jail.launcher, ceiling, jail.cpu_seconds))
    except SandboxUnavailable as unavailable:
        return [str(unavailable)]
    finally:
        del os.environ[_CANARY]
    try:
        return [*_kernel_faults(worker.pid, jail), *_block_faults(worker, canary)]
    except OSError as error:
        return [f"the jail cannot be inspected: {error}"]
    finally:
        worker.close()


def _start_error(jail: Jail) -> str | None:
    """Returns bubblewrap's error message if it cannot start at all, or None."""
    completed = subprocess.run([jail.launcher, "--version"], capture_output=True, text=True, timeout=20)
    if completed.returncode == 0:
        return None
    lines = completed.stderr.strip().splitlines()
    return f"the jail does not start: {lines[-1] if lines else f'exit {completed.returncode}'}"


def _kernel_faults(pid: int, jail: Jail) -> Iterator[str]:
    process = Path(f"/proc/{pid}")
    status, own_status = _status(process), _status(Path("/proc/self"))
    # In a container this process has a filter too, and its children inherit it; the jail adds one.
    if int(status.get("Seccomp_filters", 1)) <= int(own_status.get("Seccomp_filters", 0)):
        yield "the worker has no system call filter"
    for name, value in _EXPECTED_STATUS.items():
        if status.get(name) != value:
            yield f"{name} of the worker is {status.get(name)}, not {value}"
    for name in _SEPARATE_NAMESPACES:
        if (process / "ns" / name).readlink() == Path("/proc/self/ns", name).readlink():
            yield f"the worker shares this process's {name} namespace"
    environment = [entry for entry in (process / "environ").read_bytes().split(b"\0") if entry]
    if [entry for entry in environment if not entry.startswith(b"PWD=/")]:
        yield "the worker inherits environment variables"
    for link in (process / "fd").iterdir():
        if not _HARMLESS_TARGET.match(target := str(link.readlink())):
            yield f"the worker has {target} open"
    root = process / "root"
    readable = {Path("/", path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}
    if readable != set(jail.files):
        yield f"the worker can read {sorted(map(str, readable ^ set(jail.files)))}"
    for mount in (process / "mountinfo").read_text().splitlines():
        if "ro" not in mount.split()[5].split(","):
            yield f"the worker can write to {mount.split()[4]}"
    limits = dict(re.findall(r"^(Max [a-z ]+?)\s{2,}\S+\s+(\S+)", (process / "limits").read_text(), re.MULTILINE))
    expected_limits = {"Max cpu time": jail.cpu_seconds, "Max data size": jail.data_bytes, "Max file size": 0}
    for name, maximum in expected_limits.items():
        if limits.get(name) != str(maximum):
            yield f"{name} of the worker is {limits.get(name)}, not {maximum}"


def _status(process: Path) -> dict[str, str]:
    return dict(re.findall(r"^(\w+):\s*(.*)$", (process / "status").read_text(), re.MULTILINE))


def _block_faults(worker: Worker, canary: str) -> Iterator[str]:
    names: list[str] = [_CANARY, "PATH", "/proc/self/environ", "/etc/passwd"]
    peek = worker.run(_PEEK_CODE, {"names": [*names]}, Limits())
    if peek.fault is not None:
        yield f"a plain block does not run: {peek.fault.message}"
    elif peek.value or canary in repr(peek.value):
        yield "a block can read the environment or a file"
    started = time.monotonic()
    loop = worker.run(_LOOP_CODE, {}, Limits(wall_seconds=_LOOP_SECONDS))
    if loop.fault is None or loop.fault.kind is not FaultKind.TIME:
        yield f"an endless loop was not stopped by its time limit; it ended with {loop.fault or loop.value}"
    elif time.monotonic() - started > _LOOP_SECONDS + GRACE_SECONDS:
        yield "an endless loop was stopped too late"
