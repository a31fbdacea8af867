"""The cluster at its first start. Everything in it is made up; no company's systems are meant."""

from typing import Any

MADE_UP = "This cluster is simulated: its namespaces, workloads, releases and builds are made up."

_WORKLOADS = (
    # namespace, name, replicas, image, revision
    ("prod", "web", 3, "registry.example/prod/web:2.4.0", 6),
    ("prod", "api", 2, "registry.example/prod/api:7.3.1", 12),
    ("shop", "web", 3, "registry.example/shop/web:2.4.1", 7),
    ("shop", "cart", 2, "registry.example/shop/cart:1.9.0", 4),
    ("shop", "checkout", 2, "registry.example/shop/checkout:3.2.0", 11),
    ("payments", "ledger", 2, "registry.example/payments/ledger:5.0.2", 3),
    ("payments", "gateway", 2, "registry.example/payments/gateway:5.1.0", 9),
    ("monitoring", "prometheus", 1, "registry.example/mirror/prometheus:3.1.0", 2),
    ("monitoring", "grafana", 1, "registry.example/mirror/grafana:12.0.1", 5),
)
_RESTARTS = {"checkout": 14}
"""Pods that were restarted often, so that there is something to find."""


def new_cluster() -> dict[str, Any]:
    """The cluster as it is before anything was done to it."""
    deployments = _deployments()
    pods: dict[str, dict[str, Any]] = {}
    for place, deployment in deployments.items():
        for number in range(deployment["replicas"]):
            pods[f"{place}-{number}"] = new_pod(deployment, number)
    return {
        "about": MADE_UP,
        "nodes": {name: {"name": name, "ready": True, "schedulable": True, "cpus": 8} for name in ("n1", "n2", "n3")},
        "deployments": deployments,
        "pods": pods,
        "configmaps": {"shop/web-settings": {"BANNER": "off", "CACHE_SECONDS": "60"}},
        "releases": {
            "shop/web": _release("shop", "web", "web-0.8.2", 7, {"replicas": 3}),
            "payments/gateway": _release("payments", "gateway", "gateway-1.4.0", 9, {"rateLimit": 200}),
        },
        "apps": {
            "shop": _app("shop", "shop", "OutOfSync", "Healthy"),
            "payments": _app("payments", "payments", "Synced", "Healthy"),
            "monitoring": _app("monitoring", "monitoring", "Synced", "Progressing"),
        },
        "jobs": {
            "build-web": _job("build-web", ("SUCCESS", "FAILURE", "SUCCESS")),
            "build-cart": _job("build-cart", ("SUCCESS", "SUCCESS")),
            "nightly-tests": _job("nightly-tests", ("FAILURE", "FAILURE")),
        },
        "effects": [],
        "answers": {},
    }


def _deployments() -> dict[str, dict[str, Any]]:
    return {
        f"{namespace}/{name}": {
            "namespace": namespace,
            "name": name,
            "replicas": replicas,
            "image": image,
            "revision": revision,
            "images": {str(revision - 1): image.rpartition(".")[0] + ".0", str(revision): image},
            "restarted": 0,
        }
        for namespace, name, replicas, image, revision in _WORKLOADS
    }


def new_pod(deployment: dict[str, Any], number: int) -> dict[str, Any]:
    """A pod of `deployment`; its number makes its name and its node."""
    return {
        "namespace": deployment["namespace"],
        "name": f"{deployment['name']}-{number}",
        "deployment": deployment["name"],
        "phase": "Running",
        "restarts": _RESTARTS.get(deployment["name"], 0),
        "node": f"n{number % 3 + 1}",
        "image": deployment["image"],
    }


def _release(namespace: str, name: str, chart: str, revision: int, values: dict[str, Any]) -> dict[str, Any]:
    history = [{"revision": revision - 1, "chart": chart, "values": {}}]
    history.append({"revision": revision, "chart": chart, "values": values})
    shown = {"namespace": namespace, "name": name, "chart": chart, "revision": revision, "status": "deployed"}
    return {**shown, "values": values, "history": history}


def _app(name: str, namespace: str, sync: str, health: str) -> dict[str, Any]:
    revisions = [f"{number}f{number}c2d{number}" for number in (3, 4, 5)]
    return {
        "name": name,
        "namespace": namespace,
        "repository": f"https://git.example/deploy/{name}",
        "sync": sync,
        "health": health,
        "revision": revisions[-2] if sync == "OutOfSync" else revisions[-1],
        "revisions": revisions,
    }


def _job(name: str, results: tuple[str, ...]) -> dict[str, Any]:
    builds = [
        {"number": number, "result": result, "parameters": {}, "seconds": 40 + 7 * number}
        for number, result in enumerate(results, 1)
    ]
    return {"name": name, "branch": "main", "builds": builds}
