"""The hostile blocks of hostile.yaml."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_NOTHING = object()


@dataclass(frozen=True, slots=True)
class Hostile:
    """One block that does its worst."""

    attack: str
    name: str
    code: str
    ends: frozenset[str]
    """Kinds of fault it may end with."""
    value: Any = _NOTHING

    def ended_as_told(self, kind: str | None, value: Any) -> bool:
        """Whether a run that came to this is one of those that are written down."""
        return kind in self.ends if kind is not None else value == self.value


def _read(entry: dict[str, Any]) -> Hostile:
    ends = entry.get("ends", [])
    code = entry.get("code")
    if code is None:
        before, again, times, after = entry["repeat"]
        code = before + again * times + after
    kinds = frozenset([ends] if isinstance(ends, str) else ends)
    return Hostile(entry["attack"], entry["name"], code, kinds, entry.get("value", _NOTHING))


HOSTILE = [_read(entry) for entry in yaml.safe_load(Path(__file__).with_name("hostile.yaml").read_text())]
