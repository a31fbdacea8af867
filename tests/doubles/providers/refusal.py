"""Why a vendor rejects a request, before it has the vendor's form."""

from dataclasses import dataclass
from typing import Any

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refusal:
    message: str
    code: str = ""
    param: str = ""
