"""Checks the project's prose: docstrings, comments, messages, Markdown and templates. `python -m tests.repo.prose`

Compares the findings of each file outside tests/ with prose_left.tsv, which may only shrink: a file with more findings
than its line fails, and so does a line that is higher than the findings (`--lower` writes the lower numbers). With
PATHS, prints every finding of these files or folders with the advice; the exit status is 1 if there is one.

`prose: ok` in a line allows its findings. The rules are in prose_rules.toml.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path

import yaml

from tests.repo.committed import ROOT, files

LONGEST_SENTENCE_WORDS = 30
HERE = Path(__file__).parent
LEFT = HERE / "prose_left.tsv"
"""Findings and path of each file that still has some, as one line."""
MOST_LEFT = 25
"""Sum of the findings in the list. Lower it after `--lower`; never raise it."""
MOST_LEFT_IN_A_FILE = 7
_PAGES = (".html", ".jinja", ".j2")
_SETTINGS = (".env.example", ".importlinter", ".ci/run", "bin/perdure", "Dockerfile", "Makefile")
_LANGUAGES = (".css", ".js", ".sql", ".toml", ".yaml", ".yml")
CHECKED = (".py", ".md", *_PAGES, *_SETTINGS, *_LANGUAGES)
"""Ends of the names of files that hold prose."""
FOREIGN = ("perdure/pages/static/htmx.min.js",)
"""A library."""


@dataclass(frozen=True, slots=True)
class Text:
    path: str
    line: int
    kind: str
    """docstring (of an attribute too), comment, message, markdown, template or settings."""
    words: str


@dataclass(frozen=True, slots=True)
class Hit:
    path: str
    line: int
    rule: str
    found: str
    advice: str


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    pattern: re.Pattern[str]
    advice: str
    kinds: frozenset[str] = frozenset()
    """Empty: every kind of text."""
    finds: str = ""
    """A docstring with a finding of this rule."""
    passes: str = ""
    """The right form of `finds`, and similar texts without findings of any rule."""


_TABLE = tomllib.loads((HERE / "prose_rules.toml").read_text(encoding="utf-8"))
NAMES: dict[str, str] = _TABLE["names"]
"""The advice for names of modules, classes and functions."""
RULES = tuple(
    Rule(
        each["name"], re.compile(each["pattern"], 0 if each.get("case") else re.IGNORECASE), each["advice"],
        frozenset(each.get("kinds", ())), each.get("finds", ""), each.get("passes", ""),
    )
    for each in _TABLE["rules"]
)  # fmt: skip
_SQL = re.compile(
    r"\b(?:SELECT|INSERT INTO|UPDATE \w+ SET|DELETE FROM|CREATE (?:TABLE|INDEX|FUNCTION|POLICY|ROLE)"
    r"|ALTER TABLE|FROM \w+|ON CONFLICT|redis\.call)\b"
)
_COMMENTS = {
    ".css": re.compile(r"(?s)/\*.*?\*/"),
    ".js": re.compile(r"""(?s)"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`|(//[^\n]*|/\*.*?\*/)"""),
    ".sql": re.compile(r"""(?s)'(?:[^']|'')*'|"[^"]*"|(--[^\n]*|/\*.*?\*/)"""),
    ".toml": re.compile(r"""(?s)\"{3}.*?\"{3}|'{3}.*?'{3}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|(#[^\n]*)"""),
}
"""A string or, as the last group, a comment."""
_HASH = re.compile(r"#[^\n]*")
_CODE = re.compile(
    r"``[^`]*``|`[^`]*`|\{\{.*?\}\}|\{%.*?%\}|https?://\S+|<[^<>\s][^<>]*>|\b[A-Za-z_]+\([^()]*\)|\b\w+(?:\.\w+)*\.(?:py|md|yaml|yml|json|html|sql)\b|\b\w*_\w+\b"
)
_SENTENCE = re.compile(
    r"(?<=[.!?])[\"')\]]*\s+(?=[A-Z`\"'(\d<*])|\n\s*\n|\n\s*(?:[-*] |\d+\. |#+ )"
    r"|\n(?=Raises:|Effects:|Determinism:|Invariants:|Returns:|\s*[-*|])"
)


def texts(name: str, source: str) -> Iterator[Text]:
    path = Path(name)
    if path.suffix == ".py":
        yield from _python(source, name)
    elif path.suffix == ".md":
        yield from _markdown(source, name)
    elif path.suffix in _PAGES:
        yield from _template(source, name)
    elif path.suffix in _LANGUAGES:
        yield from _comments(source, name)
    elif name.endswith(_SETTINGS):
        yield from _hashes(source, name)


def _blocks(numbered: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """The first line and the words of lines that follow one another."""
    for _, run in groupby(enumerate(numbered), lambda each: each[1][0] - each[0]):
        lines = [line for _, line in run]
        yield lines[0][0], "\n".join(words for _, words in lines)


def _python(source: str, name: str) -> Iterator[Text]:
    nodes = [*ast.walk(ast.parse(source))]
    docs: set[int] = set()
    for node in nodes:
        blocks = [getattr(node, field, None) for field in ("body", "orelse", "finalbody")]
        for each in (statement for block in blocks if isinstance(block, list) for statement in block):
            value = each.value if isinstance(each, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                docs.add(id(value))
                yield Text(name, value.lineno, "docstring", value.value)
    if not name.startswith(("tests/", "bench/")):  # strings of tests and of the benchmark are data
        for line, words in _strings(nodes, docs):
            if _is_message(words):
                yield Text(name, line, "message", words)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = ((each.start[0], each.string.lstrip("#").strip()) for each in tokens if each.type == tokenize.COMMENT)
    for line, words in _blocks(comments):
        yield Text(name, line, "comment", words)


def _strings(nodes: list[ast.AST], left_out: set[int]) -> Iterator[tuple[int, str]]:
    """The strings of a module with their lines; what an f-string inserts is `x`."""
    inside = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out | inside:
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (str(part.value) if isinstance(part, ast.Constant) else "`x`" for part in node.values)
            yield node.lineno, "".join(parts)


def _is_message(words: str) -> bool:
    if re.search(r"(?m)^\s*(?:import|from|def|class|async def|local|return) |<svg|<path", words):
        return False
    letters = re.findall(r"[A-Za-z']{2,}", words)
    return len(letters) >= 3 and not _SQL.search(words) and bool(re.search(r"[a-z]{2,} [a-z]{2,}", words))


def _markdown(source: str, name: str) -> Iterator[Text]:
    block: list[str] = []
    start, fenced = 1, False
    front = source.count("\n", 0, source.find("\n---", 3)) + 2 if source.startswith("---\n") else 0
    for number, line in enumerate(source.split("\n"), 1):
        if number <= front:  # YAML front matter
            continue
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
            line = ""
        elif fenced or line.startswith("    "):
            line = ""
        ends = not line.strip() or re.match(r"\s*(?:[-*+] |\d+\. |#)", line) or line.lstrip().startswith("|")
        if ends and block:
            yield Text(name, start, "markdown", "\n".join(block))
            block = []
        if line.lstrip().startswith("|"):
            for cell in re.split(r"\||<br>", line.strip().strip("|")):
                yield Text(name, number, "markdown", cell.strip())
        elif line.strip():
            if not block:
                start = number
            block.append(re.sub(r"\]\([^)]*\)", "]", line))
    if block:
        yield Text(name, start, "markdown", "\n".join(block))


def _template(source: str, name: str) -> Iterator[Text]:
    source = re.sub(r"(?s)<(script|style)\b.*?</\1>|\{#.*?#\}", lambda m: "\n" * m.group().count("\n"), source)
    for match in re.finditer(r"(?s)(?:^|>)([^<>]+)(?=<|$)", source):
        words = re.sub(r"(?s)\{%.*?%\}", lambda m: "\n" * m.group().count("\n") or " | ", match.group(1))
        if re.search(r"[A-Za-z]{2,} [A-Za-z]", words):
            line = source.count("\n", 0, match.start(1)) + len(words) - len(words.lstrip("\n")) + 1
            yield Text(name, line, "template", words.strip())
    for match in re.finditer(r'\b(?:title|placeholder|aria-label|alt)="([^"{}]* [^"{}]*)"', source):
        yield Text(name, source.count("\n", 0, match.start()) + 1, "template", match.group(1))


def _hashes(source: str, name: str) -> Iterator[Text]:
    lines = ((number, line.lstrip()) for number, line in enumerate(source.split("\n"), 1))
    for start, words in _blocks((number, line.lstrip("#").strip()) for number, line in lines if line.startswith("#")):
        yield Text(name, start, "settings", words)
    for match in re.finditer(r"""(?m)\becho "([^"]+)"|(?<=\S)[ \t]##? (.+)$|^name = (.+)$""", source):
        yield Text(name, source.count("\n", 0, match.start()) + 1, "message", next(filter(None, match.groups())))


def _comments(source: str, name: str) -> Iterator[Text]:
    """Yields the comments of a file in another language, and the messages of scripts. Successive lines with only a
    comment are one text."""
    alone: list[tuple[int, str]] = []
    trailing: list[tuple[int, str]] = []
    suffix = Path(name).suffix
    for match in _yaml_comments(source) if suffix in (".yaml", ".yml") else _COMMENTS[suffix].finditer(source):
        start = source.count("\n", 0, match.start()) + 1
        if match[match.re.groups] is None:
            if suffix == ".js" and _is_message(match.group()):
                yield Text(name, start, "message", re.sub(r"\$\{[^}]*\}", "`x`", match.group()[1:-1]))
            continue
        before = source[source.rfind("\n", 0, match.start()) + 1 : match.start()]
        lines = (line.strip().strip("-#/*").strip() for line in match.group().split("\n"))
        (trailing if before.strip() else alone).extend(enumerate(lines, start))
    for line, words in (*_blocks(alone), *trailing):
        yield Text(name, line, "comment", words)


def _yaml_comments(source: str) -> Iterator[re.Match[str]]:
    """Finds `#` between tokens; inside a token it is part of a value."""
    at = 0
    for token in yaml.scan(source, Loader=yaml.SafeLoader):
        yield from _HASH.finditer(source, at, token.start_mark.index)
        at = token.end_mark.index
    yield from _HASH.finditer(source, at)


def hits(text: Text) -> Iterator[Hit]:
    words = _CODE.sub(lambda match: "`" + "\n" * match.group().count("\n") + "`", text.words)
    lines = [line.strip() for line in words.split("\n")]
    flat, starts = " ".join(lines), [0, *accumulate(len(line) + 1 for line in lines)]
    seen: set[tuple[str, int]] = set()
    for rule in RULES:
        if rule.kinds and text.kind not in rule.kinds:
            continue
        for match in rule.pattern.finditer(flat.lstrip() if rule.name in ("opening", "clause") else flat):
            if (rule.name, match.start()) not in seen:
                seen.add((rule.name, match.start()))
                line = text.line + bisect_right(starts, match.start()) - 1
                shown = flat[max(0, match.start() - 30) : match.end() + 30].strip()
                yield Hit(text.path, line, rule.name, shown, rule.advice)
    if text.kind == "comment" and re.match(r"(?:type:|noqa|fmt:|ruff:|mypy:|!)", text.words):
        return
    for sentence in _SENTENCE.split(words):
        plain = sentence or ""
        count = len([word for word in plain.replace("/", " ").split() if re.search(r"\w|`", word)])
        if count > LONGEST_SENTENCE_WORDS:
            line = text.line + words.count("\n", 0, words.find(plain)) + (len(plain) - len(plain.lstrip("\n")))
            advice = f"{count} words; split it: at most {LONGEST_SENTENCE_WORDS}, better 25"
            yield Hit(text.path, line, "long", " ".join(plain.split())[:70] + "…", advice)


def names(source: str, path: str) -> Iterator[Hit]:
    """Names in NAMES that a module still defines."""
    stem = Path(path).stem
    if stem in NAMES:
        yield Hit(path, 1, "name", f"module {stem}", f"rename: {NAMES[stem]}")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name.lstrip("_") in NAMES:
            yield Hit(path, node.lineno, "name", node.name, f"rename: {NAMES[node.name.lstrip('_')]}")


def findings(path: str) -> list[Hit]:
    source = (ROOT / path).read_text(encoding="utf-8", errors="replace")
    allowed = {number for number, line in enumerate(source.split("\n"), 1) if "prose: ok" in line}
    found = [hit for text in texts(path, source) for hit in hits(text)]
    if path.endswith(".py"):
        found += names(source, path)
    return sorted((hit for hit in found if hit.line not in allowed), key=lambda hit: hit.line)


def checked_files(within: Iterable[str] = ()) -> list[str]:
    """The committed files that hold prose, all or those at or below the given paths."""
    below = tuple(each.rstrip("/") for each in within)
    return [
        path
        for path in files()
        if path.endswith(CHECKED)
        and not path.startswith(FOREIGN)
        and (not below or path in below or path.startswith(tuple(f"{b}/" for b in below)))
    ]


def differences(found: Mapping[str, int], left: Mapping[str, int]) -> Iterator[str]:
    """Returns what is wrong with the numbers of findings by file, compared with those left to mend and their limits."""
    for path in sorted({*found, *left}):
        now, before = found.get(path, 0), left.get(path, 0)
        if now > before:
            yield f"{path}: {now} findings, {before} allowed; see `python -m tests.repo.prose {path}`"
        elif now < before:
            yield f"{path}: {now} findings, {before} allowed; lower it with `python -m tests.repo.prose --lower`"
        if before > MOST_LEFT_IN_A_FILE:
            yield f"{path}: {before} allowed, at most {MOST_LEFT_IN_A_FILE} in a file"
    total = sum(left.values())
    if total != MOST_LEFT:
        yield f"{LEFT.name}: {total} allowed together, {MOST_LEFT} in MOST_LEFT, which can only be lowered"


def left_to_mend() -> dict[str, int]:
    rows = (line.split("\t") for line in LEFT.read_text(encoding="utf-8").splitlines())
    return {path: int(count) for count, path in rows}


def _count(path: str) -> tuple[str, int]:
    return path, len(findings(path))


def counted() -> dict[str, int]:
    paths = [path for path in checked_files() if not path.startswith("tests/")]
    with ProcessPoolExecutor() as pool:
        return {path: count for path, count in pool.map(_count, paths, chunksize=20) if count}


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the project's prose.")
    parser.add_argument("paths", nargs="*", help="print the findings of these files and folders")
    parser.add_argument("--lower", action="store_true", help="lower the numbers of prose_left.tsv to the findings")
    options = parser.parse_args()
    if options.paths:
        hits_found = [hit for path in checked_files(options.paths) for hit in findings(path)]
        for hit in hits_found:
            print(f"{hit.path}:{hit.line}: {hit.rule}: {hit.found} -> {hit.advice}")
        return 1 if hits_found else 0
    count = counted()
    if options.lower:
        rows = sorted((path, min(count.get(path, 0), before)) for path, before in left_to_mend().items())
        LEFT.write_text("".join(f"{found}\t{path}\n" for path, found in rows if found), encoding="utf-8")
    wrong = list(differences(count, left_to_mend()))
    print("\n".join(wrong) if wrong else f"prose: {sum(count.values())} findings left, none new")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
