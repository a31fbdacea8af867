"""The wheel is `perdure` alone with all its files, from wherever it is built, and runs beside modules of any name. Each
checkout here is a copy of the files as they would be committed. requirements.lock has a hash for every entry, no
address, and everything that pyproject.toml asks for."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml
from uv import find_uv_bin

from tests.repo.committed import PROGRAMS, ROOT, files, loaded, said, text_of
from tests.repo.test_import_rules import LINKS

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
ABOUT = f"perdure-{VERSION}.dist-info"
THEIRS = ("activities", "api", "cli", "contracts", "examples", "graph", "local", "store", "workflows")
"""Folders of a user's own, beside THEIR_FILES: common names, which were import names of Perdure once."""
THEIR_FILES = ("policy", "prepare", "settings", "worker")
NOT_OURS = "raise RuntimeError(\"a module of the user's was imported in place of one of Perdure's\")\n"
ASK = [sys.executable, "-c", "import perdure; print(perdure.__version__)"]
ENTRY = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[\w,-]+\])?==(?P<version>[^\s;\\]+)")
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}( \\)?$")


def copied(to: Path, *, links: bool = True, wanted: Callable[[str], bool] = lambda path: True) -> Path:
    """A checkout of the wanted files; without links git writes a small text file in place of each."""
    for path in filter(wanted, files()):
        if path in LINKS:
            continue
        (to / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, to / path)
    for name in filter(wanted, LINKS):
        if links:
            (to / name).symlink_to(f"perdure/{name}")
        else:
            (to / name).write_text(f"perdure/{name}")
    return to


def uv(*arguments: str | Path, cache: Path) -> None:
    said([find_uv_bin(), *map(str, arguments), "--offline", "--quiet"], ROOT, UV_CACHE_DIR=str(cache))


def held(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as opened:
        return {name: opened.read(name) for name in opened.namelist() if not name.endswith("/")}


def below(folder: Path, within: str) -> dict[str, bytes]:
    """The files that are installed, without what Python writes beside them."""
    found = (path for path in (folder / within).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wheel")


@pytest.fixture(scope="module")
def checkout(builds: Path) -> Path:
    return copied(builds / "checkout")


@pytest.fixture(scope="module")
def no_links(builds: Path) -> Path:
    """A checkout where links are text files, as with `git config core.symlinks false`."""
    return copied(builds / "plain", links=False)


@pytest.fixture(scope="module")
def wheel(builds: Path, checkout: Path) -> Path:
    uv("build", "--wheel", "-o", builds / "dist", checkout, cache=builds / "cache")
    return builds / "dist" / f"perdure-{VERSION}-py3-none-any.whl"


@pytest.fixture(scope="module")
def target(builds: Path, wheel: Path) -> Path:
    to = ("--target", builds / "installed", "--python", sys.executable)
    uv("pip", "install", "--no-deps", *to, wheel, cache=builds / "cache")
    return builds / "installed"


APP = {
    "agents/desk.yaml": "id: desk\ntitle: Desk\ntopology: skill_pipeline\nmodel: scripted\npersona: You help.\n"
    "core_tools: false\ntools: [weigh, measure, count]\nscript: ../script.yaml\n",
    "script.yaml": "turns: []\n",
    "tools/settings.py": "from perdure import tool\nfrom . import policy\nfrom .graph import EDGES\n\n\n"
    '@tool(effect="read")\n'
    'async def weigh() -> str:\n    """Weigh."""\n    return f"{policy.LIMIT} of {EDGES}"\n',
    "tools/policy.py": 'from perdure import tool\n\nLIMIT = 7\n\n\n@tool(effect="read")\nasync def measure() -> str:\n'
    '    """Measure."""\n    return "measured"\n',
    "tools/store.py": 'from perdure import tool\nfrom .graph import EDGES\n\n\n@tool(effect="read")\n'
    'async def count() -> str:\n    """Count."""\n    return str(EDGES)\n',
    "tools/graph/__init__.py": "EDGES = 12\n",
}
RUN = """
import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
import httpx
from perdure.apps import load_app
from perdure.sdk.context import ToolContext

app = load_app(Path.cwd())
assert not app.problems, app.problems
assert [agent.tools for agent in app.agents] == [("weigh", "measure", "count")], app.agents
for tool in app.tools.values():
    context = ToolContext(
        card=tool.card, tenant_id="t", turn_id="t", conversation_id="c", call_id="t1.0", user_id="u",
        idempotency_key="k", deadline=datetime.now(UTC) + timedelta(seconds=9), http=httpx.AsyncClient(), secrets={},
    )
    print(tool.card.name, asyncio.run(tool.run({}, context)).output)
"""


@pytest.fixture
def users_folder(tmp_path: Path) -> Path:
    """A user's project that is an app too; of its modules none can be imported."""
    theirs = dict.fromkeys([*(f"{name}/__init__.py" for name in THEIRS), *(f"{n}.py" for n in THEIR_FILES)], NOT_OURS)
    for path, text in (theirs | APP).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_the_wheel_holds_all_files_below_perdure_and_its_build_leaves_nothing(checkout: Path, wheel: Path) -> None:
    assert {path.name for path in checkout.iterdir()} == {path.partition("/")[0] for path in (*files(), *LINKS)}
    found = held(wheel)
    ours = {path for path in files() if path.startswith("perdure/")}
    assert {name for name in found if not name.startswith(f"{ABOUT}/")} == ours
    assert {"perdure/py.typed", "perdure/apps/template/.gitignore", "perdure/examples/charts/tools/design.lp"} <= ours
    assert f"{ABOUT}/licenses/LICENSE" in found
    assert b"perdure = perdure.__main__:main" in found[f"{ABOUT}/entry_points.txt"]


@pytest.mark.soak
def test_the_sdist_makes_the_same_wheel(builds: Path, checkout: Path, wheel: Path) -> None:
    uv("build", "--sdist", "-o", builds / "source", checkout, cache=builds / "cache")
    with tarfile.open(builds / "source" / f"perdure-{VERSION}.tar.gz") as packed:
        packed.extractall(builds / "source", filter="data")
    uv("build", "--wheel", "-o", builds / "again", builds / "source" / f"perdure-{VERSION}", cache=builds / "cache")
    assert held(builds / "again" / wheel.name) == held(wheel)


@pytest.mark.soak
def test_an_install_from_git_has_the_same_files_and_a_clone_has_the_links(builds: Path, wheel: Path) -> None:
    source = copied(builds / "repository", wanted=lambda path: path.startswith("perdure/") or "/" not in path)
    (source / ".gitignore").unlink()
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    for words in (("init", "-q"), ("add", "-A"), (*who, "commit", "-qm", "all")):
        subprocess.run(["git", *words], cwd=source, check=True, capture_output=True, timeout=60)
    to = ("--target", builds / "from-git", "--python", sys.executable)
    uv("pip", "install", "--no-deps", *to, f"perdure @ git+file://{source}", cache=builds / "cache")
    product = {name: body for name, body in held(wheel).items() if name.startswith("perdure/")}
    assert below(builds / "from-git", "perdure") == product
    subprocess.run(["git", "clone", "-q", source, builds / "clone"], check=True, capture_output=True, timeout=60)
    assert {name: str((builds / "clone" / name).readlink()) for name in LINKS} == {n: f"perdure/{n}" for n in LINKS}


def test_every_command_prints_the_same_version(target: Path, checkout: Path, users_folder: Path) -> None:
    (checkout / ".venv").symlink_to(sys.prefix)
    ours, line = {"PYTHONPATH": str(target)}, f"perdure {VERSION}\n"
    try:
        assert said([str(checkout / "bin" / "perdure"), "--version"], users_folder) == line
    finally:
        (checkout / ".venv").unlink()
    assert said([str(target / "bin" / "perdure"), "--version"], users_folder, **ours) == line
    assert said([sys.executable, "-m", "perdure", "--version"], users_folder, **ours) == line


def test_the_version_is_not_that_of_a_project_around_it(no_links: Path, target: Path, tmp_path: Path) -> None:
    written = (no_links / "pyproject.toml").read_text()
    try:
        (no_links / "pyproject.toml").write_text(written.replace(f'version = "{VERSION}"', 'version = "9.9"'))
        (target / "pyproject.toml").write_text('[project]\nname = "theirs"\nversion = "9.9"\n')
        told = [said(ASK, folder, PYTHONPATH=str(target)) for folder in (no_links, tmp_path)]
    finally:
        (no_links / "pyproject.toml").write_text(written)
        (target / "pyproject.toml").unlink()
    assert told == ["9.9\n", f"{VERSION}\n"]


def test_every_process_starts_in_a_folder_with_modules_of_these_names(target: Path, users_folder: Path) -> None:
    modules = tuple({module: None for program in PROGRAMS.values() for module in program})
    found = loaded(modules, users_folder, PYTHONPATH=str(target))
    ours = {name: file for name, file in found.items() if name.partition(".")[0] == "perdure"}
    assert len(ours) > 200 and all(file.is_relative_to(target / "perdure") for file in ours.values())
    assert [name for name, file in found.items() if file.is_relative_to(users_folder)] == []


def test_an_app_folder_with_modules_of_these_names_loads_and_its_tools_run(target: Path, users_folder: Path) -> None:
    told = said([sys.executable, "-c", RUN], users_folder, PYTHONPATH=str(target))
    assert told.splitlines() == ["measure measured", "weigh 7 of 12", "count 12"]


def test_a_new_app_of_an_installed_perdure_names_the_environments_own_command(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(tmp_path / "site-packages")
    write = "from pathlib import Path; from perdure.apps.scaffold import scaffold; scaffold(Path('desk'))"
    said([sys.executable, "-c", write], tmp_path, PYTHONPATH=str(tmp_path / "site-packages"))
    assert f'export PATH="{Path(sys.executable).parent}:$PATH"\n' in (tmp_path / "desk" / "README.md").read_text()
    assert (tmp_path / "desk" / ".gitignore").is_file()


@pytest.mark.soak
def test_without_links_the_wheel_a_start_and_the_checks_are_the_same(builds: Path, no_links: Path, wheel: Path) -> None:
    uv("build", "--wheel", "-o", builds / "linkless", no_links, cache=builds / "cache")
    assert held(builds / "linkless" / wheel.name) == held(wheel)
    bin_ = Path(sys.executable).parent
    assert "--queues" in said([sys.executable, "worker.py", "--help"], no_links)
    assert said([sys.executable, "-m", "perdure", "--version"], no_links) == f"perdure {VERSION}\n"
    listed = said([str(bin_ / "ruff"), "check", "--show-files", "--no-cache", "."], no_links).splitlines()
    assert {Path(each).relative_to(no_links).as_posix() for each in listed} >= {p for p in files() if p.endswith(".py")}
    links = "tests/repo/test_import_rules.py::test_a_folder_on_top_is_a_link_to_the_package"
    assert "." * len(LINKS) in said([str(bin_ / "pytest"), "-p", "no:cacheprovider", "--noconftest", links], no_links)


def test_mypy_leaves_out_the_links() -> None:
    exclude = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["exclude"]
    left_out = [name for name in LINKS if any(re.search(pattern, f"{name}/__init__.py") for pattern in exclude)]
    assert left_out == [*LINKS]
    assert not any(re.search(pattern, "perdure/graph/registry.py") for pattern in exclude)


def in_image() -> Callable[[str], bool]:
    """Whether the image has a path: what the Dockerfile copies, without what `.dockerignore` names."""
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line]
    copies = re.findall(r"^COPY (.+) (\S+)$", (ROOT / "deploy" / "Dockerfile").read_text(), re.MULTILINE)
    sources = [source for named, _ in copies for source in named.split() if not source.startswith("--")]

    def has(path: str) -> bool:
        parts = path.split("/")
        upwards = ["/".join(parts[:length]) for length in range(1, len(parts) + 1)]
        named = (*upwards, *(f"**/{part}" for part in parts))
        if any(fnmatch(each, pattern) for each in named for pattern in ignored):
            return False
        return any(source == "." or source.rstrip("/") in upwards for source in sources)

    return has


def test_the_image_has_the_links_and_the_modules_of_its_processes(tmp_path: Path) -> None:
    image = copied(tmp_path / "app", wanted=in_image())
    assert {name for name in LINKS if (image / name).resolve() == image / "perdure" / name} == {*LINKS}
    assert not (image / "tests").exists()
    assert below(image, "perdure").keys() == {path for path in files() if path.startswith("perdure/")}
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"].values()
    commands = [each["command"] for each in services if each.get("command", [""])[0] == "python"]
    modules = {words[2] for words in commands if words[1] == "-m"}
    assert {"perdure.api", "perdure.apps.bootstrap"} <= modules and ["python", "worker.py", "--relay"] in commands
    find = "import importlib.util, sys; print([name for name in sys.argv[1:] if not importlib.util.find_spec(name)])"
    assert said([sys.executable, "-c", find, "worker", *sorted(modules)], image) == "[]\n"


def entries(text: str) -> dict[str, int]:
    """Returns the entries' names with their numbers of hashes. Raises ValueError for any other line but a comment."""
    found: dict[str, int] = {}
    name = ""
    for number, line in enumerate(text.splitlines(), 1):
        entry = ENTRY.match(line)
        if entry:
            name = f"{entry['name']}=={entry['version']}"
            found[name] = 0
        elif HASH.match(line) and name:
            found[name] += 1
        elif line.strip() and not line.lstrip().startswith("#"):
            raise ValueError(f"line {number} is no entry of a lock: {line[:80]!r}; run make lock")
    return found


def test_every_locked_package_has_hashes_and_no_address_and_the_image_checks_them() -> None:
    bare = [name for name, hashes in entries(text_of("requirements.lock")).items() if hashes == 0]
    assert not bare, f"without a hash: {bare}; run make lock"
    option = r"^-{1,2}(?:i|index-url|extra-index-url|find-links|trusted-host)\b.*"
    found = re.findall(rf"\S*://\S+|{option}|\S+ @ \S+", text_of("requirements.lock"), re.M)
    assert not found, f"which registry is used is the machine's business: {found}"
    assert "--require-hashes" in text_of("deploy/Dockerfile")


def test_every_dependency_of_the_project_is_locked() -> None:
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    asked = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    names = {_plain(re.split(r"[\[<>=~!; ]", each)[0]) for each in asked}
    locked = {_plain(name.partition("==")[0]) for name in entries(text_of("requirements.lock"))}
    assert not names - locked, f"not in requirements.lock: {sorted(names - locked)}; run make lock"


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
