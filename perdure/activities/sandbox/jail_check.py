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
from perdure.activities.sandbox.worker import GRACE_SECONDS, Making, Worker

_OWN = ("ipc", "mnt", "net", "pid", "user", "uts")
"""Namespaces that a worker must not share with this process."""
_FACTS = {"Seccomp": "2", "NoNewPrivs": "1", **{f"Cap{each}": "0" * 16 for each in ("Inh", "Prm", "Eff", "Bnd", "Amb")}}
"""Expected values in /proc/<pid>/status: a filter is active, programs cannot gain rights, and there are none."""
_PLAIN = re.compile(r"(pipe:|anon_inode:|/dev/null\Z)")
_LOOP = "def run() -> None:\n    while True:\n        pass\n"
_LOOP_SECONDS = 0.1
_CANARY = "PERDURE_SANDBOX_CANARY"
_PEEK = """
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
    complaint = _complaint(jail)
    if complaint is not None:
        return [complaint]
    os.environ[_CANARY] = canary = secrets.token_hex(16)
    try:
        worker = Worker(Making(jail.launcher, ceiling, jail.cpu_seconds))
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


def _complaint(jail: Jail) -> str | None:
    """Returns bubblewrap's error message if it cannot start at all, or None."""
    tried = subprocess.run([jail.launcher, "--version"], capture_output=True, text=True, timeout=20)
    if tried.returncode == 0:
        return None
    lines = tried.stderr.strip().splitlines()
    return f"the jail does not start: {lines[-1] if lines else f'exit {tried.returncode}'}"


def _kernel_faults(pid: int, jail: Jail) -> Iterator[str]:
    facts = Path(f"/proc/{pid}")
    status, own = _status(facts), _status(Path("/proc/self"))
    # In a container this process has a filter too, and its children inherit it; the jail adds one.
    if int(status.get("Seccomp_filters", 1)) <= int(own.get("Seccomp_filters", 0)):
        yield "the worker has no system call filter"
    for name, value in _FACTS.items():
        if status.get(name) != value:
            yield f"{name} of the worker is {status.get(name)}, not {value}"
    for name in _OWN:
        if (facts / "ns" / name).readlink() == Path("/proc/self/ns", name).readlink():
            yield f"the worker shares this process's {name} namespace"
    environment = [entry for entry in (facts / "environ").read_bytes().split(b"\0") if entry]
    if [entry for entry in environment if not entry.startswith(b"PWD=/")]:
        yield "the worker inherits environment variables"
    for link in (facts / "fd").iterdir():
        if not _PLAIN.match(target := str(link.readlink())):
            yield f"the worker has {target} open"
    root = facts / "root"
    seen = {Path("/", path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}
    if seen != set(jail.files):
        yield f"the worker can read {sorted(map(str, seen ^ set(jail.files)))}"
    for mount in (facts / "mountinfo").read_text().splitlines():
        if "ro" not in mount.split()[5].split(","):
            yield f"the worker can write to {mount.split()[4]}"
    bounds = dict(re.findall(r"^(Max [a-z ]+?)\s{2,}\S+\s+(\S+)", (facts / "limits").read_text(), re.MULTILINE))
    wanted = {"Max cpu time": jail.cpu_seconds, "Max data size": jail.data_bytes, "Max file size": 0}
    for name, most in wanted.items():
        if bounds.get(name) != str(most):
            yield f"{name} of the worker is {bounds.get(name)}, not {most}"


def _status(facts: Path) -> dict[str, str]:
    return dict(re.findall(r"^(\w+):\s*(.*)$", (facts / "status").read_text(), re.MULTILINE))


def _block_faults(worker: Worker, canary: str) -> Iterator[str]:
    names: list[str] = [_CANARY, "PATH", "/proc/self/environ", "/etc/passwd"]
    peeked = worker.run(_PEEK, {"names": [*names]}, Limits())
    if peeked.fault is not None:
        yield f"a plain block does not run: {peeked.fault.message}"
    elif peeked.value or canary in repr(peeked.value):
        yield "a block can read the environment or a file"
    started = time.monotonic()
    looped = worker.run(_LOOP, {}, Limits(wall_seconds=_LOOP_SECONDS))
    if looped.fault is None or looped.fault.kind is not FaultKind.TIME:
        yield f"an endless loop was not stopped by its time limit; it ended with {looped.fault or looped.value}"
    elif time.monotonic() - started > _LOOP_SECONDS + GRACE_SECONDS:
        yield "an endless loop was stopped too late"
