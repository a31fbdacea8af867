"""docker-compose.yml is a valid compose file, and has a worker for every kind of work."""

import json
import re
import subprocess
import sys
from typing import Any

import pytest
import yaml

from perdure.contracts.turns import Kind
from perdure.core.request_origin import exposure_refusal
from perdure.local.config import STACK_ALONE
from perdure.settings import BASE_ADDRESSES
from tests.repo.committed import ROOT
from tests.repo.test_environment import EXAMPLE, LINE

COMPOSE = ROOT / "docker-compose.yml"
WORKER = ["python", "worker.py"]
BESIDE = {"postgres", "redis", "temporal", "temporal-ui", "temporal-ui-proxy", "bootstrap", "api", "worker-relay"}
"""The services that serve no task queue."""
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text())["services"]


def worker_faults(found: dict[str, dict[str, Any]]) -> list[str]:
    """Kinds without exactly one worker service of their own, and unknown services."""
    commands = {name: service.get("command") for name, service in found.items()}
    faults = []
    for kind in Kind:
        name, command = f"worker-{kind.value}", [*WORKER, "--queues", kind.value]
        serving = [each for each, given in commands.items() if given == command]
        if serving != [name]:
            faults.append(f"the {kind.value} queue is served by {serving}; it wants one service {name}: {command}")
    faults += [f"there is no service {name}" for name in sorted(BESIDE - commands.keys())]
    unknown = sorted(commands.keys() - BESIDE - {f"worker-{kind.value}" for kind in Kind})
    return faults + [f"unknown service {name}" for name in unknown]


def test_the_file_fits_the_compose_schema() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, f"docker compose would refuse it:\n{said.stdout}{said.stderr}"


def test_every_kind_of_work_has_one_worker_service_and_there_is_a_relay_and_an_api() -> None:
    assert worker_faults(SERVICES) == []
    assert SERVICES["worker-relay"]["command"] == [*WORKER, "--relay"]
    assert SERVICES["api"]["command"] == ["python", "-m", "perdure.api"]
    assert SERVICES["bootstrap"]["command"] == ["python", "-m", "perdure.apps.bootstrap"]


def test_the_api_every_worker_and_the_relay_are_watched_by_their_heartbeat() -> None:
    for name in ["api", *(name for name in SERVICES if name.startswith("worker-"))]:
        file = SERVICES[name]["environment"]["PERDURE_READY_FILE"]
        check = ["CMD", "python", "-m", "perdure.telemetry.heartbeat", file]
        assert SERVICES[name]["healthcheck"]["test"] == check, name
        assert SERVICES[name]["environment"]["PERDURE_EXIT_WHEN_HUNG"] == "1", "Docker restarts only what has ended"
        assert SERVICES[name]["restart"] == "unless-stopped", name
    assert SERVICES["bootstrap"]["healthcheck"] == {"disable": True}


def test_every_published_port_is_on_loopback_and_temporal_has_none() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert set(published) == {"api", "temporal-ui-proxy"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


def test_temporals_web_ui_is_reached_through_its_proxy_alone_and_its_http_api_refuses_every_host() -> None:
    assert SERVICES["temporal-ui"]["network_mode"] == "service:temporal-ui-proxy"
    (mounted,) = SERVICES["temporal-ui"]["volumes"]
    written = yaml.safe_load((ROOT / mounted.partition(":")[0]).read_text())
    assert written["host"] == "127.0.0.1"
    proxy = SERVICES["temporal-ui-proxy"]["command"]
    assert proxy[1:3] == ["-m", "perdure.local.temporal_web"] and proxy[-1] == f"127.0.0.1:{written['port']}"
    settings = yaml.safe_load((ROOT / "deploy" / "temporal-dynamic-config.yaml").read_text())
    assert settings["frontend.httpAllowedHosts"] == [{"value": ["nobody.perdure.invalid"]}]


DOCUMENTED = {name for name, _ in LINE.findall(EXAMPLE.read_text())}
APPS = {"PERDURE_APP", "PERDURE_EXAMPLES"}
FIXED = {
    "DATABASE_URL", "DATABASE_OWNER_URL", "DATABASE_RELAY_URL", "DATABASE_ADMIN_URL", "REDIS_URL", "PERDURE_HOST",
    "PERDURE_ROUTING", "PERDURE_READY_FILE", "PERDURE_AUDIT_HEADS", "PERDURE_EXIT_WHEN_HUNG",
}  # fmt: skip
"""What names a place in the network or in a container, or depends on a restart policy: `.env` does not change it."""
OF_ONE_MACHINE = {
    *STACK_ALONE, "PERDURE_HOME", "PERDURE_PORT", "PERDURE_LOCAL", "PERDURE_START_GATE", "PERDURE_UPLOAD_FOLDER",
    "PERDURE_OPEN_TURNS_LOST", "PERDURE_LEAST_FREE_BYTES",
}  # fmt: skip
"""Of the embedded stack, or a folder or port inside of a container."""
PROVIDERS = {*BASE_ADDRESSES, "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "PERDURE_SECRET_MODEL"}
READ_BY = {
    **dict.fromkeys(APPS, frozenset({"bootstrap", "worker-turns", "worker-tools"})),
    **dict.fromkeys(("JWT_SECRET", "PERDURE_OPERATOR_TOKEN", "PERDURE_SECRET_OIDC"), frozenset({"api"})),
    **dict.fromkeys(PROVIDERS, frozenset({"bootstrap", "worker-llm"})),
    "PERDURE_SECRET_EMBEDDINGS": {"worker-turns", "worker-memory", "worker-relay"},
    "PERDURE_SECRET_TRACER": {"worker-turns", "worker-relay"},
}
"""The settings that only some services get, because they are secrets or belong to the apps that these load."""
OWN = {name for name, service in SERVICES.items() if service["image"] == "perdure"} - {"temporal-ui-proxy"}
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


def resolved(name: str, env: dict[str, str]) -> dict[str, str]:
    """The environment of a service as `docker compose` makes it from `.env`."""

    def value_of(found: re.Match[str]) -> str:
        value = env.get(found[1], "")
        assert value or found[2] != "?", f"{found[1]} is required"
        return value or (found[3] if found[2] == "-" else "")

    given = SERVICES[name]["environment"]
    texts = {each: env.get(each) if text is None else VARIABLE.sub(value_of, str(text)) for each, text in given.items()}
    return {each: text for each, text in texts.items() if text is not None}


@pytest.mark.parametrize("name", sorted(OWN))
def test_every_setting_of_env_reaches_the_services_that_read_it_and_no_other(name: str) -> None:
    passwords = {f"PG_{each}_PASSWORD": "p" for each in ("ADMIN", "OWNER", "APP", "RELAY")} | {"REDIS_PASSWORD": "p"}
    env = {each: f"{each} of .env" for each in {*DOCUMENTED, *READ_BY}} | passwords
    wanted = {each for each in {*DOCUMENTED, *READ_BY} if name in READ_BY.get(each, OWN)} - FIXED - OF_ONE_MACHINE
    found = resolved(name, env)
    assert {each for each, text in found.items() if text == env.get(each)} == wanted
    assert not [each for each, text in found.items() if each in FIXED and "of .env" in text]
    assert not (found.keys() - wanted - FIXED - {"TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE"})
    required = dict.fromkeys(("PERDURE_AUDIT_KEY", "JWT_SECRET", "PERDURE_PUBLIC_URL"), "x") | passwords
    unset = resolved(name, required).keys() - required.keys() - FIXED
    assert unset <= {"TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE", "PERDURE_TEMPORAL_UI", *APPS}, "the rest has defaults"


def test_the_port_of_env_is_the_one_that_is_published() -> None:
    assert SERVICES["api"]["ports"] == ["127.0.0.1:${PERDURE_PORT:-8080}:8080"]


JAILERS = {"bootstrap", "worker-tools"}
"""The services that check or run code blocks."""
NEEDED = {"clone", "clone3", "unshare", "setns", "mount", "umount2", "pivot_root", "prctl", "seccomp", "capset"}
"""What bubblewrap calls to build a jail."""


def test_only_the_worker_of_code_blocks_can_build_jails() -> None:
    for name, service in SERVICES.items():
        options = set(service.get("security_opt", ()))
        loosened = {option for option in options if "unconfined" in option or option.startswith("seccomp")}
        assert bool(loosened) is (name in JAILERS), f"{name}: {sorted(options)}"
        assert not {"privileged", "cap_add", "userns_mode", "user"} & service.keys(), name
        if name in JAILERS:
            loose = ("seccomp=./deploy/seccomp-sandbox.json", "apparmor=unconfined", "systempaths=unconfined")
            assert loosened == set(loose)
            assert "no-new-privileges:true" in options and service["cap_drop"] == ["ALL"]


def test_the_seccomp_profile_allows_a_jails_calls_and_refuses_kernel_interfaces() -> None:
    profile = json.loads((ROOT / "deploy" / "seccomp-sandbox.json").read_text())
    refused = {name for rule in profile["syscalls"] for name in rule["names"]}
    assert {rule["action"] for rule in profile["syscalls"]} == {"SCMP_ACT_ERRNO"}
    assert profile["defaultAction"] == "SCMP_ACT_ALLOW" and not refused & NEEDED
    assert {"bpf", "init_module", "kexec_load", "keyctl", "perf_event_open", "ptrace", "userfaultfd"} <= refused


def test_the_image_has_the_program_that_builds_the_jail_and_does_not_run_as_root() -> None:
    steps = (ROOT / "deploy" / "Dockerfile").read_text().splitlines()
    assert any(step.startswith("RUN apt-get") and " bubblewrap " in step for step in steps)
    assert "USER perdure" in steps


def test_the_api_listens_on_all_addresses_so_it_needs_the_address_that_people_use() -> None:
    given = SERVICES["api"]["environment"]
    assert exposure_refusal(given["PERDURE_HOST"], "")
    assert given["PERDURE_PUBLIC_URL"].startswith("${PERDURE_PUBLIC_URL:?")
    assert "PERDURE_PUBLIC_URL=" in COMPOSE.read_text().partition("name:")[0], "the top of the file says how to set it"


def test_the_compose_file_contains_no_secret() -> None:
    for name, service in SERVICES.items():
        for variable, value in (service.get("environment") or {}).items():
            if "PASSWORD" in variable or variable.endswith("_PWD") or "://" in str(value).replace("http://", ""):
                assert "${" in str(value), f"{name}.{variable} has a secret of its own; take it from .env"
