"""The scan before a write: what may not be remembered, and what is worth a second look (S2-71).

Pure, and in time that grows with the text's length. A finding names its rule and line, never the text itself: it goes
into events and answers.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from contracts.documents import DEFAULT_LIMITS, MemoryLimits, Scope
from policy.documents.injection import injection_at
from policy.documents.secrets import secrets_in

MOST_BYTES, LARGE_BYTES = DEFAULT_LIMITS.document_bytes, DEFAULT_LIMITS.write_bytes
MOST_LOG_LINES = 30
ENTROPY_CHARACTERS = 40
ENTROPY_BITS = 4.8
"""A character, in a run of at least so many without a blank."""
_LOG_LINE = re.compile(
    r"[ \t]{0,8}(?:"
    r"\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d"
    r"|\[?\d\d/[A-Z][a-z]{2}/\d{4}:"
    r"|[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d"
    r"|[IWEF]\d{4} \d\d:\d\d:\d\d"
    r"|\d\d:\d\d:\d\d[.,]\d{3}"
    r"|\[?(?:TRACE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL|CRITICAL)\b"
    r"|\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3} - "
    r"|\{\"(?:ts|time|timestamp|level|severity|msg|message)\":"
    r"|(?:time|ts|level)=[\"\w]"
    r"|at [\w.$<>]{1,100}\("
    r")"
)
_RUN = re.compile(rf"[^\s\"'`,;()<>]{{{ENTROPY_CHARACTERS},}}")


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found."""

    rule: str
    message: str
    blocks: bool
    line: int | None = None

    def as_data(self) -> dict[str, str | int | bool | None]:
        """For an event or an answer."""
        return {"rule": self.rule, "message": self.message, "blocks": self.blocks, "line": self.line}


def scan(text: str, scope: Scope, limits: MemoryLimits = DEFAULT_LIMITS) -> tuple[Finding, ...]:
    """Everything that is wrong with `text`, what blocks it first; empty where nothing is."""
    most_bytes = limits.document_bytes
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > most_bytes:  # unread: nothing of it is looked at
        return (Finding("too_large", f"it has {size} bytes, more than {most_bytes}", blocks=True),)
    found = [*_blocking(text, scope), *_warning(text, size, limits.write_bytes)]
    return tuple(sorted(found, key=lambda finding: not finding.blocks))


def is_blocked(findings: tuple[Finding, ...]) -> bool:
    """Whether it may not be written."""
    return any(finding.blocks for finding in findings)


def _blocking(text: str, scope: Scope) -> Iterator[Finding]:
    logs = sum(1 for line in text.split("\n") if _LOG_LINE.match(line))
    if logs > MOST_LOG_LINES:
        yield Finding("raw_logs", f"{logs} lines are a log's; write down what they mean", blocks=True)
    plain = _plain(text)
    for kind, offset in secrets_in(plain):
        yield Finding(f"secret.{kind}", "it holds what looks like a secret", True, plain.count("\n", 0, offset) + 1)
    if scope is not Scope.CONVERSATION:
        at = injection_at(plain)
        if at is not None:
            line = plain.count("\n", 0, at) + 1 if at else None
            yield Finding("injection", "it speaks to a model instead of informing it", True, line)


def _warning(text: str, size: int, large_bytes: int) -> Iterator[Finding]:
    if size > large_bytes:
        yield Finding("large", f"it has {size} bytes; a turn is shown 1,200 characters of it", blocks=False)
    for run in _RUN.finditer(text):
        if entropy_bits(run.group()) >= ENTROPY_BITS:
            line = text.count("\n", 0, run.start()) + 1
            yield Finding("high_entropy", "a run of characters looks random, as a key does", False, line)
            return


def entropy_bits(text: str) -> float:
    """Shannon's entropy of a text, in bits a character."""
    shares = [count / len(text) for count in Counter(text).values()]
    return -sum(share * math.log2(share) for share in shares)


def _plain(text: str) -> str:
    """`text` without what hides words from a pattern: compatibility forms, and characters that nobody sees."""
    shown = unicodedata.normalize("NFKC", text)
    return shown if shown.isascii() else "".join(each for each in shown if unicodedata.category(each) != "Cf")
