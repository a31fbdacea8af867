"""perdure/apps: an app folder, also one that `perdure init` writes, is loaded whole, or told every mistake's place."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from textwrap import dedent

import httpx
import pytest

from perdure.activities.providers.scripted import Script
from perdure.apps import SHIPPED, App, Engine, app_folders, find_apps, load_app
from perdure.apps.files import YamlFile, parse_yaml, read_yaml
from perdure.apps.scaffold import scaffold
from perdure.contracts.errors import CallerError
from perdure.core.egress import NamedHost, Outbound
from perdure.egress import EgressRefused, new_client
from perdure.local.config import ROOT
from perdure.local.ports import free_port
from perdure.local.programs import read_app_services
from perdure.worker import queues as serving
from tests.doubles.hostile_target import says, target
from tests.unit.apps.skill_app import FILES, are_at, is_at, problems_of, write_app
from tests.unit.examples.payments_process import wait_until_healthy

AGENT = "id: helper\ntitle: Helper\ntopology: skill_pipeline\n"
TOOL = '''
from perdure import tool

@tool(effect="read")
async def look(name: str) -> str:
    """Look."""
    return name
'''
DEEP = ["a: " + "[" * 30_000, "a: " + "{b: " * 30_000, "- " * 30_000 + "x", "[" * 101 + "]" * 101]
READ = "import sys, pathlib, perdure.apps.files as y; print(y.read_yaml(pathlib.Path(sys.argv[1])))"
DEFAULT = Engine().expires_seconds
ESCALATES = "expires_seconds: 60\n  on_timeout: escalate\n  fallback_reviewer: c\n  fallback_after_seconds: "
COMPANIONS = "companions: [{name: desk, command: [python, x.py], port_env: DESK_PORT, url_env: DESK_ADDRESS}]\n"


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_yaml", ".yaml").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return folder


def test_a_good_folder_gives_its_agents_and_tools(tmp_path: Path) -> None:
    helper = AGENT + "tools: [look, create_entity]\nlimits: {max_tokens: 5}\n"
    folder = write(tmp_path / "My App", agents__helper_yaml=helper, tools__desk_py=TOOL)
    app = load_app(folder, Engine(topologies=("skill_pipeline",)))
    assert app.problems == ()
    assert (app.name, app.title) == ("my-app", "my-app")
    (agent,) = app.agents
    assert agent.tools == ("look", "create_entity") and agent.limits.max_tokens == 5
    assert set(app.tools) == {"look"}


def test_every_mistake_of_every_file_is_reported_at_once_and_the_rest_is_loaded(tmp_path: Path) -> None:
    folder = write(
        tmp_path, app_yaml="name: shop\ntilte: Shop\n", agents__good_yaml=AGENT + "tools: [look]\n",
        agents__typo_yaml="id: typo\ntitle: Typo\ntopology: skill_pipelin\nmodle: x\nlimits:\n  max_token: 5\n",
        agents__wrong_yaml="id: Wrong\ntitle: 1\ntools:\n  - look\n  - loook\nlimits:\n  max_tokens: many\n",
        agents__broken_yaml="id: broken\ntitle: [\n",
        agents__twice_yaml="id: twice\ntitle: a\ntitle: b\ntopology: t\n", agents__again_yaml=AGENT,
        tools__desk_py=TOOL, tools__wrong_py=TOOL.replace('effect="read"', 'effect="write"').replace("look", "touch"),
        tools__broken_py="def (:\n", tools__crash_py="\n\nimport not_there_at_all\n",
        tools__core_py=TOOL.replace("look", "create_entity"), tools__z_py=TOOL,
    )  # fmt: skip
    app = load_app(folder, Engine(topologies=("skill_pipeline",)))
    assert [agent.id for agent in app.agents] == ["helper"]
    assert set(app.tools) == {"look"}
    expected = [
        "app.yaml:2 tilte title", "tools/broken.py:1", "tools/core.py:4 create_entity",
        "tools/crash.py:3 not_there_at_all", "tools/wrong.py:4 touch write", "tools/z.py:4 look desk.py",
        "agents/broken.yaml:3", "agents/good.yaml helper again.yaml", "agents/twice.yaml:3 title",
        "agents/typo.yaml:3 skill_pipelin skill_pipeline", "agents/typo.yaml:4 modle model",
        "agents/typo.yaml:6 max_token max_tokens", "agents/wrong.yaml:1 id", "agents/wrong.yaml:1 topology",
        "agents/wrong.yaml:2 title", "agents/wrong.yaml:5 loook look", "agents/wrong.yaml:7 limits.max_tokens",
    ]  # fmt: skip
    assert are_at(problems_of(app), expected)


@pytest.mark.parametrize("broken", ["import not_there_at_all\n", "def (:\n"])
def test_a_broken_tool_file_is_reported_once_per_agent_and_file(tmp_path: Path, broken: str) -> None:
    folder = write(
        tmp_path,
        agents__a_yaml=AGENT + "tools: [look, touch, loook]\n",
        agents__b_yaml=AGENT.replace("helper", "other") + "tools: [touch]\n",
        tools__desk_py=broken + TOOL + TOOL.replace("look", "touch"),
    )
    app = load_app(folder)
    assert app.agents == ()
    agents = [line for line in problems_of(app) if line.startswith("agents/")]
    expected = ["agents/a.yaml:4 loook look", "agents/a.yaml:4 desk.py look touch", "agents/b.yaml:4 desk.py touch"]
    assert are_at(agents, expected)
    assert len(problems_of(app)) == 4 and problems_of(app)[0].startswith("tools/desk.py:")


@pytest.mark.parametrize(("text", "where"), [
    ("", "a.yaml:1"), ("- id: x\n", "a.yaml:1"), ("1: x\n" + AGENT, "a.yaml:1"),
    (AGENT + "true: x\n", "a.yaml:4 true"), (AGENT + "on: true\n", "a.yaml:4 on"),
    (AGENT + "model_params:\n  day: 2026-01-01\n", "a.yaml:5 model_params.day"),
    (AGENT + "model_params: {temperature: .nan}\n", "a.yaml:4 model_params.temperature"),
    (AGENT + "fallback: {model: m/n}\nfallback_model: m/o\n", "a.yaml:5 fallback_model"),
        (AGENT + "fallback:\n  model: m/n\n  credential: c\n  params: {api_key_secret: d}\n",
            "a.yaml:7 fallback.params.api_key_secret"),
    (AGENT + "fallback: {modle: m/n}\n", "a.yaml:4 modle"),
    *((AGENT + f"model_params: {{{param}}}\n", f"a.yaml:4 {param.partition(':')[0]}") for param in (
        "timeout: 5", "stream: true", "max_retries: 9", "api_base: not a url", "base_url: 'http://[x'",
        "temperature: hot", "max_tokens: -5", "api_key_secret: Not A Name!")),
    (AGENT + "stages: {s: {model_params: {top_p: true}}}\n", "a.yaml:4 stages.s.model_params.top_p"),
    (AGENT + "fallback: {model: openai/x, params: {stream: true}}\n", "a.yaml:4 fallback.params.stream"),
    (AGENT + "fallback: {model: openai/x, credential: Not A Name!}\n", "a.yaml:4 fallback.credential"),
    (AGENT + "model: openai/x\nfallback: {model: scripted}\n", "a.yaml:5 fallback.model"),
    (AGENT + 'persona: "a\\0b"\n', "a.yaml:4 persona"),
    (AGENT + "script: there/is/none.yaml\n", "a.yaml:4 there/is/none.yaml"), (AGENT + "x: &x [*x]\n", "a.yaml"),
    ("id: x\n\ttitle: y", "a.yaml:2"),
    ("a0: &a0 x\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 10}]\n" for n in range(1, 10)), "a.yaml"),
])  # fmt: skip
def test_a_file_that_is_not_an_agent_is_reported_and_never_raised(tmp_path: Path, text: str, where: str) -> None:
    app = load_app(write(tmp_path, agents__a_yaml=text))
    assert app.agents == ()
    assert any(is_at(problem, f"agents/{where}") for problem in problems_of(app)), problems_of(app)


def test_an_unknown_provider_and_a_key_in_the_file_are_warnings(tmp_path: Path) -> None:
    params = "model: opnai/x\nmodel_params: {max_tokens: null, api_key: sk-x}\n"
    app = load_app(write(tmp_path, agents__a_yaml=AGENT + params))
    assert len(app.agents) == 1
    assert are_at(problems_of(app), ["agents/a.yaml:4 opnai openai", "agents/a.yaml:5 api_key_secret"])


def test_bytes_that_are_not_utf8_are_reported(tmp_path: Path) -> None:
    (write(tmp_path, agents__a_yaml="") / "agents" / "a.yaml").write_bytes(b"\xff\xfe\x00id")
    assert are_at(problems_of(load_app(tmp_path)), ["agents/a.yaml"])


def test_a_script_file_is_part_of_the_agent_and_its_mistakes_carry_its_own_lines(tmp_path: Path) -> None:
    rules = "rules:\n  - {name: hi, when: hi, say: Hello}\n  - {name: bad, say: x}\nfalback: x\n"
    folder = write(tmp_path, agents__a_yaml=AGENT + "script: ../scripts/s.yaml\n", scripts__s_yaml=rules)
    app = load_app(folder, Engine(script=Script))
    found = [problem.removeprefix("agents/../") for problem in problems_of(app)]
    assert are_at(found, ["scripts/s.yaml:3 rules.1", "scripts/s.yaml:4 falback"])
    (folder / "scripts" / "s.yaml").write_text(rules.splitlines(True)[0] + rules.splitlines(True)[1])
    (agent,) = load_app(folder, Engine(script=Script)).agents
    assert agent.script == {"rules": [{"name": "hi", "when": "hi", "say": "Hello"}]}
    own = write(tmp_path, agents__a_yaml=AGENT + "script:\n  rules:\n    - name: bad\n      say: x\n      wen: y\n")
    assert are_at(problems_of(load_app(own, Engine(script=Script))), ["agents/a.yaml:8 rules.0.wen"])


def test_files_of_one_app_may_share_code_and_two_apps_may_share_names(tmp_path: Path) -> None:
    user = "from . import _client\nfrom .other import look\n" + TOOL.replace("look", "greet")
    for name in ("one", "two"):
        agent, shared = AGENT.replace("helper", name) + "tools: [greet]\n", f"GREETING = '{name}'\n"
        files = {"tools__desk_py": user, "tools___client_py": shared, "tools__other_py": TOOL}
        write(tmp_path / name, agents__helper_yaml=agent, **files)
    one, two = load_app(tmp_path / "one"), load_app(tmp_path / "two")
    assert one.problems == two.problems == ()
    assert set(one.tools) == {"greet", "look"}
    greetings = [sys.modules[app.tools["greet"].function.__module__]._client.GREETING for app in (one, two)]
    assert greetings == ["one", "two"]


def test_a_folder_that_is_loaded_again_shows_its_changes(tmp_path: Path) -> None:
    folder = write(tmp_path, agents__helper_yaml=AGENT + "tools: [look]\n", tools__desk_py=TOOL)
    first = load_app(folder).tools["look"].card
    (folder / "tools" / "desk.py").write_text(TOOL.replace("Look.", "Look closely."))
    second = load_app(folder).tools["look"].card
    assert second.description == "Look closely." and second.version == first.version
    (folder / "tools" / "desk.py").write_text(TOOL.replace("return name", "return name * 2"))
    assert load_app(folder).tools["look"].card.version != first.version


def test_a_folder_without_agents_is_no_app(tmp_path: Path) -> None:
    assert "agents/" in problems_of(load_app(tmp_path))[0]
    (tmp_path / "agents").mkdir()
    assert are_at(problems_of(load_app(tmp_path)), ["agents"])
    assert load_app(tmp_path / "nowhere").problems


@pytest.mark.parametrize(("text", "line"), [("name: 3\n", 1), ("title: [x]\n", 1), ("- x\n", 1), ("name: [\n", 2)])
def test_mistakes_in_app_yaml_do_not_lose_the_agents(tmp_path: Path, text: str, line: int) -> None:
    app = load_app(write(tmp_path, app_yaml=text, agents__helper_yaml=AGENT))
    assert [agent.id for agent in app.agents] == ["helper"] and is_at(problems_of(app)[0], f"app.yaml:{line}")


def test_examples_load_first_and_keep_their_names(tmp_path: Path) -> None:
    write(tmp_path / "refunds", agents__helper_yaml=AGENT)
    write(tmp_path / "mine", agents__refunds_yaml=AGENT.replace("helper", "refunds"), agents__own_yaml=AGENT)
    apps = find_apps(app_folders([tmp_path / "refunds", tmp_path / "mine"], examples=True), Engine(script=Script))
    *shipped, second, mine = apps
    for app in shipped:
        assert problems_of(app) == [] and app.agents and app.folder.parent == SHIPPED
    assert second.agents == () and "refunds" in problems_of(second)[0]
    assert [agent.id for agent in mine.agents] == ["helper"] and are_at(problems_of(mine), ["agents refunds"])


def test_each_yaml_value_has_its_line_and_a_missing_one_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a:\n  b:\n    - c\n    - d: 1\nbase: &base {x: 1}\nmerged:\n  <<: *base\n  y: 2\n")
    file = read_yaml(path)
    assert isinstance(file, YamlFile)
    assert file.value["merged"] == {"x": 1, "y": 2}
    lines = [file.line(place) for place in (("a", "b", 1, "d"), ("a", "b", 7), ("merged", "x"), ("nowhere",), ())]
    assert lines == [4, 2, 6, 1, 1]


def with_link(folder: Path, path: str, to: Path) -> Path:
    """The app in `folder` with a link at `path`."""
    write_app(folder, {path: None})
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).symlink_to(to)
    return folder


@pytest.mark.parametrize("path", [
    "app.yaml", "agents/host.yaml", "skills/tea/SKILL.md", "skills/tea/artifacts/leaves.md", "data/leaves.json",
])  # fmt: skip
def test_a_file_outside_the_app_is_reported_by_name(tmp_path: Path, path: str) -> None:
    (tmp_path / "elsewhere").write_text(FILES[path])
    app = load_app(with_link(tmp_path / "app", path, tmp_path / "elsewhere"))
    assert are_at(problems_of(app), [path])
    assert (app.agents, app.skills, app.tables) == ((), {}, {})


def test_a_folder_outside_the_app_is_one_mistake_and_none_of_its_tools_is_imported(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere", desk_py="raise SystemExit('it was imported')\n")
    assert are_at(problems_of(load_app(with_link(tmp_path / "app", "tools", tmp_path / "elsewhere"))), ["tools"])


def test_indirect_links_to_the_outside_and_dead_links_are_reported(tmp_path: Path) -> None:
    folder = with_link(tmp_path / "app", "skills/tea/artifacts/leaves.md", Path("../../../shared/leaves.md"))
    (folder / "shared").mkdir()
    (folder / "shared" / "leaves.md").symlink_to(tmp_path / "nowhere")
    assert are_at(problems_of(load_app(folder)), ["skills/tea/artifacts/leaves.md"])


def test_links_within_the_app_are_followed_and_so_is_a_link_to_the_app(tmp_path: Path) -> None:
    folder = with_link(tmp_path / "app", "personas/host.md", Path("../shared/host.md"))
    (folder / "shared").mkdir()
    (folder / "shared" / "host.md").write_text(FILES["personas/host.md"])
    (folder / "personas" / "round").symlink_to(".")
    (folder / "notes").symlink_to(tmp_path)
    (tmp_path / "behind").symlink_to(folder)
    for each in (folder, tmp_path / "behind"):
        assert problems_of(load_app(each)) == []


@pytest.mark.parametrize("text", DEEP)
def test_too_deep_nesting_is_refused_with_its_line(text: str, tmp_path: Path) -> None:
    path = write(tmp_path, deep_yaml=text) / "deep.yaml"
    ran = subprocess.run([sys.executable, "-c", READ, path], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0 and "line=1" in ran.stdout, ran.stderr


def test_usual_nesting_is_read() -> None:
    assert isinstance(parse_yaml(Path("app.yaml"), "[" * 50 + "]" * 50), YamlFile)


@pytest.mark.parametrize(("approvals", "deadline", "expected"), [
    # approvals, the deployment's deadline, what is told ("" where the agent is loaded)
    ("quorum: 1\n  reviewer_role: reviewr", DEFAULT, "6 reviewr reviewer"),
    ("escalation_role: boss", DEFAULT, "5 boss admin requester"),
    ("reviewers:\n    - ann\n    - Bob Smith", DEFAULT, "7 Bob Smith"),
    ('reviewers: ["ann\\n"]', DEFAULT, "5 ann"),
    ("fallback_reviewer: Carl", DEFAULT, "5 Carl"),
    ("expires_seconds: 3600\n  fallback_reviewer: carl", DEFAULT, "4 86400 3600"),
    ("expires_seconds: 60\n  fallback_reviewer: carl\n  fallback_after_seconds: 60", DEFAULT, "7 60"),
    (ESCALATES + "120", DEFAULT, "8 120"),
    ("reviewers: [ann]\n  quorum: 2", DEFAULT, "4"),
    ("fallback_reviewer: carl", 60, "4 60"),
    ("reviewer_role: boss\n  quorum: none", DEFAULT, "6 approvals.quorum"),  # what is wrong in its form is told once
    ("reviewers: [ann, bob.smith]\n  quorum: 2\n  fallback_reviewer: carl", DEFAULT, ""),
    ("reviewer_role: admin\n  escalation_role: reviewer", DEFAULT, ""),
    ("expires_seconds: 60", DEFAULT, ""),
    (ESCALATES + "119", DEFAULT, ""),
    ("quorum: 1", 60, ""),
    ("expires_seconds: 60", 90, ""),
])  # fmt: skip
def test_a_policy_nobody_can_satisfy_is_refused(tmp_path: Path, approvals: str, deadline: int, expected: str) -> None:
    folder = write(tmp_path, agents__helper_yaml=f"{AGENT}approvals:\n  {approvals}\n")
    app = load_app(folder, Engine(topologies=("skill_pipeline",), expires_seconds=deadline))
    assert are_at(problems_of(app), [f"agents/helper.yaml:{expected}"] if expected else [])
    assert bool(app.problems) is not bool(app.agents)
    for agent in app.agents:
        assert agent.approvals.expires_seconds == (60 if "expires" in approvals else deadline)


def desk_app(folder: Path, own: str = "", agent: str = "helper") -> App:
    """One that loads."""
    write(
        folder,
        app_yaml=f"name: {folder.name}\n{own}",
        agents__helper_yaml=AGENT.replace("id: helper", f"id: {agent}") + "tools: [look]\n",
        tools__desk_py=TOOL.replace('"read"', '"read", secrets=("desk_url", "desk_token")'),
    )
    return load_app(folder, Engine(topologies=("skill_pipeline",)))


def named(found: App, **values: str) -> set[NamedHost]:
    return set(found.outbound(Outbound(), values.get).named)


def test_an_app_names_its_hosts_in_app_yaml(tmp_path: Path) -> None:
    found = desk_app(tmp_path / "shop", "egress: [intranet, 'db.corp.test:5000', '*.corp.test', '127.0.0.1:9000']\n")
    hosts = {NamedHost("intranet"), NamedHost("db.corp.test", 5000), NamedHost("corp.test", below=True)}
    hosts |= {NamedHost("127.0.0.1", 9000)}
    assert not found.problems and named(found) == hosts


@pytest.mark.parametrize(
    "entry", ["10.0.0.0/8", "169.254.169.254", "localhost", "'*'", "'*.com'", "2130706433", "'0x7f.1:80'"]
)
def test_an_invalid_host_in_app_yaml_is_reported_with_its_line(tmp_path: Path, entry: str) -> None:
    found = desk_app(tmp_path / "shop", f"egress: [{entry}]\n")
    assert are_at(problems_of(found), ["app.yaml:2"]) and named(found) == set()


def test_addresses_of_companions_and_credentials_count_as_named(tmp_path: Path) -> None:
    found = desk_app(tmp_path / "shop", COMPANIONS)
    given = {"URL": "http://desk:8080/v1", "TOKEN": "127.0.0.1:5432"}
    values = {f"PERDURE_SECRET_DESK_{name}": value for name, value in given.items()}
    values |= {"DESK_ADDRESS": "http://127.0.0.1:4711", "PERDURE_SECRET_OTHER_URL": "http://10.0.0.7"}
    assert named(found, **values) == {NamedHost("127.0.0.1", 4711), NamedHost("desk", 8080)}
    assert named(found) == set()


async def test_the_hosts_of_one_app_are_not_anothers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncExitStack() as stack:
        made = await stack.enter_async_context(target(says()))
        monkeypatch.setenv("DESK_ADDRESS", made.url)
        with_desk = desk_app(tmp_path / "shop", COMPANIONS, "shop_helper")
        without = desk_app(tmp_path / "other", "", "other_helper")
        clients = await serving._http_by_agent([with_desk, without], Outbound(), stack)
        assert (await clients["shop_helper"].get(made.url)).status_code == 200
        assert set(clients) == {"shop_helper"}
        plain = await stack.enter_async_context(new_client(Outbound()))
        with pytest.raises(EgressRefused):
            await plain.get(made.url)


@pytest.fixture
def scaffolded_app(tmp_path: Path) -> App:
    scaffold(tmp_path / "new" / "desk")
    return load_app(tmp_path / "new" / "desk", Engine(topologies=("skill_pipeline",), script=Script))


@pytest.fixture
def desk_url(scaffolded_app: App, tmp_path: Path) -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "desk_service.py"],
        cwd=scaffolded_app.folder,
        env={"PATH": os.environ["PATH"], "DESK_PORT": str(port), "PERDURE_COMPANION_HOME": str(tmp_path)},
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def test_a_new_app_loads_and_its_companion_is_where_its_tools_look_for_it(scaffolded_app: App) -> None:
    assert scaffolded_app.problems == ()
    assert [(agent.id, agent.tools) for agent in scaffolded_app.agents] == [("desk", ("find_tickets", "open_ticket"))]
    cards = {name: tool.card for name, tool in scaffolded_app.tools.items()}
    assert not cards["find_tickets"].needs_approval and cards["open_ticket"].needs_approval
    (companion,) = read_app_services(scaffolded_app.folder)
    assert companion.url_env == "PERDURE_SECRET_DESK_URL"
    assert all(card.secrets == ("desk_url",) for card in cards.values())


def test_the_new_apps_service_opens_one_ticket_a_key_and_finds_it_by_its_words(desk_url: str) -> None:
    headers = {"Idempotency-Key": "k"}
    for _ in range(2):
        opened = httpx.post(f"{desk_url}/tickets", json={"title": "a"}, headers=headers)
        assert (opened.status_code, opened.json()["number"]) == (201, 1)
    found = [httpx.get(f"{desk_url}/tickets", params={"words": words}).json()["tickets"] for words in "az"]
    assert found == [[{"number": 1, "title": "a"}], []]
    assert httpx.post(f"{desk_url}/tickets", json={"title": "b"}, headers=headers).status_code == 422
    assert httpx.post(f"{desk_url}/tickets", json={"tilte": "b"}).status_code == 422
    assert [httpx.post(f"{desk_url}/tickets", json={"title": "c"}).json()["number"] for _ in range(2)] == [2, 3]


def test_a_folder_that_is_not_empty_or_not_writable_is_refused(tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    for place, code in ((tmp_path, "folder_not_empty"), (mine, "not_a_folder"), (mine / "below", "cannot_write")):
        with pytest.raises(CallerError) as refused:
            scaffold(place)
        assert refused.value.code == code
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_the_files_written_exist_and_are_named_in_the_readme(tmp_path: Path) -> None:
    written = scaffold(tmp_path)
    assert sorted(written) == sorted(path for path in tmp_path.rglob("*") if path.is_file())
    names = {str(path.relative_to(tmp_path)) for path in written}
    named_files = {cell for cell in (tmp_path / "README.md").read_text().split("`") if cell in names}
    assert {"agents/desk.yaml", "scripts/desk.yaml", "tools/desk.py", "app.yaml", "desk_service.py"} <= named_files
    assert (tmp_path / ".gitignore").read_text().split() == ["__pycache__/", ".env"]
