"""The cluster's file: several servers can use it together, and none sees a partial change.

A change holds a lock on a file next to it, is written whole to a new file, and replaces the old one. Effects are
stored with it, so that a test or a user can count them: a call that was sent twice with one key is one effect.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .seed import new_cluster

Cluster = dict[str, Any]


class KeyReused(Exception):
    """The idempotency key came before, for another call."""


class State:
    """The cluster in the file at `path`, which is created if it does not exist."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock_path = path.with_name(path.name + ".lock")
        path.parent.mkdir(parents=True, exist_ok=True)

    def read(self) -> Cluster:
        """The cluster as it is now."""
        try:
            cluster: Cluster = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return new_cluster()
        return cluster

    def make(
        self, tool: str, args: Mapping[str, Any], key: str | None, change: Callable[[Cluster], Cluster]
    ) -> Cluster:
        """Applies `change`, records it as one effect and returns its answer. A repeated key returns the stored answer.

        Raises: KeyReused, and the errors of `change`; then nothing is changed.
        """
        digest = hashlib.sha256(json.dumps([tool, args], sort_keys=True).encode()).hexdigest()
        with self._locked() as cluster:
            stored = cluster["answers"].get(key) if key else None
            if stored is not None:
                if stored["digest"] != digest:
                    raise KeyReused(f"the key {key} was already used for another call")
                return {**stored["answer"], "replayed": True}
            answer = change(cluster)
            cluster["effects"].append({"id": len(cluster["effects"]) + 1, "tool": tool, "args": args, "key": key})
            if key:
                cluster["answers"][key] = {"digest": digest, "answer": answer}
            return answer

    def effects(self, tool: str = "") -> list[Cluster]:
        """Returns the effects, oldest first; only those of `tool`, if it is set."""
        return [effect for effect in self.read()["effects"] if tool in ("", effect["tool"])]

    @contextmanager
    def _locked(self) -> Iterator[Cluster]:
        with self._lock_path.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released with the file, also where the process is killed
            cluster = self.read()
            yield cluster
            new_file = self._path.with_name(f"{self._path.name}.{os.getpid()}")
            with new_file.open("w", encoding="utf-8") as file:
                json.dump(cluster, file)
                file.flush()
                os.fsync(file.fileno())
            new_file.replace(self._path)
