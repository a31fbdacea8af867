"""The hostile blocks of hostile.yaml."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Any

import yaml

_NOTHING = object()


@dataclass(frozen=True, slots=True)
class Hostile:
    attack: str
    name: str
    code: str
    ends: frozenset[str]
    """Kinds of fault it may end with."""
    value: Any = _NOTHING

    def ended_as_told(self, kind: str | None, value: Any) -> bool:
        """Whether a run that came to this is one of those that are written down."""
        return kind in self.ends if kind is not None else value == self.value


def _block(attack: str, entry: dict[str, Any]) -> Hostile:
    ends = entry.get("ends", [] if "value" in entry else "raised")
    if "repeat" in entry:
        before, again, times, after = entry["repeat"]
        code = before + again * times + after
    else:
        code = entry["code"] if "code" in entry else "def run(given):\n" + indent(entry["body"], "    ")
    kinds = frozenset([ends] if isinstance(ends, str) else ends)
    return Hostile(attack, entry["name"], code, kinds, entry.get("value", _NOTHING))


def _returning(attack: str, name: str, returned: str, ends: str) -> Hostile:
    *imports, value = returned.split("; ")
    code = "".join(f"{line}\n" for line in imports) + f"def run(given):\n    return {value}\n"
    return Hostile(attack, name, code, frozenset(ends.split(", ")))


def _read(attack: str, given: dict[str, Any]) -> Iterator[Hostile]:
    for module in given.get("modules", ()):
        yield _returning(attack, f"import of {module}", f"import {module}; str({module})", "raised")
    for ends, rows in given.get("returns", {}).items():
        for name, returned in rows.items():
            yield _returning(attack, name, returned, ends)
    for entry in given.get("blocks", ()):
        yield _block(attack, entry)


_ATTACKS = yaml.safe_load(Path(__file__).with_name("hostile.yaml").read_text())
HOSTILE = [each for attack, given in _ATTACKS.items() for each in _read(attack, given)]
