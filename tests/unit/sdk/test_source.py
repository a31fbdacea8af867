"""The code of a tool: which edits of an app's files change it."""

import ast
import math
import os
import shutil
import subprocess
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from time import process_time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.apps.files import has_mistakes
from perdure.apps.folder import read_tools
from perdure.sdk import source
from perdure.sdk.source import Code, code_of
from perdure.sdk.source_text import kept_lines

PAYMENTS = '''"""Payments."""
from __future__ import annotations
import functools, json as j
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated
from pydantic import BaseModel, field_validator
from perdure import tool
import rates_of_app.rates
from . import _rules, _lazy as lazy
from .kinds import Kind, scaled
from ._stars import *
if TYPE_CHECKING:
    from collections.abc import Sequence
LIMITS = {"eur": 100}
LIMITS["usd"] = 120
HANDLERS: list = []
TEXT = """é first

  # kept   
"""  # é
UNUSED = 1
DEFAULT = 5
PREVIEWED = 3
class Item(BaseModel): cents: int = 8
Items = tuple["Item", ...]
class Base:
    factor = 7
class Payment(Base, BaseModel):
    """A payment."""
    amount: int
    items: Items = ()
    """The amount."""
    kind: "Kind" = "a"
    @field_validator("amount")  # checked
    @classmethod
    def positive(cls, value: int) -> int:
        return value + 11
def audited(times):
    def wrap(function):
        @functools.wraps(function)
        def inner(*args): return function(*args) * 13
        return inner
    return wrap
@HANDLERS.append
def handler(): return 17
def helper(amount: "Sequence[int] | int"):
    later = lambda: deep(amount)  # noqa
    return later() * 19
def deep(amount): return amount + LIMITS["eur"]
def unused(limit): return UNUSED
def shown(): return PREVIEWED
@tool(effect="read", describe="Pay.", timeout_seconds=30)
@audited(times=2)
def pay(payment: Payment, count: int = DEFAULT) -> str:
    """Pay."""
    from .late import bonus
    handler = HANDLERS
    UNUSED = [scaled for scaled in (1,)]
    total = Decimal(helper(1)) + _rules.limit(2) + bonus() + starred + scaled(1) + rates_of_app.rates.RATE

    return j.dumps([str(total), getattr(lazy, "x"), TEXT, handler, UNUSED])
'''
FILES = {
    "tools/payments.py": PAYMENTS,
    "tools/_rules.py": "from . import payments\nBASE = 23\ndef limit(n): return n + BASE\ndef limit(n): return n * 29\n"
    "def cycle(): return payments.pay\ndef idle(): return 31\n",
    "tools/_lazy.py": "def x(): return 37\n",
    "tools/_stars.py": "starred = 41\nbeside = 43\n",
    "tools/late.py": "def bonus(): return 47\ndef malus(): return 53\n",
    "tools/kinds/__init__.py": "from ._impl import *\nfrom ._impl import Kind as Kind\n",
    "tools/kinds/_impl.py": 'Kind = str\ntry:\n    import fast\nexcept ImportError:\n    fast = 59\n'
    "def scaled(n): return n * (fast or 61)\n",
    "rates_of_app/rates.py": "RATE = 67\nOTHER = 71\n",
}  # fmt: skip
BEFORE, DEEP, AFTER = PAYMENTS.partition('def deep(amount): return amount + LIMITS["eur"]\n')
SAME = [  # file, text, text instead
    ("payments", '    """Pay."""', '    """Pay it\n\n    now."""  # at once'),
    ("payments", '"""A payment."""', "'Reworded.'"), ("payments", '    """The amount."""\n', ""),
    ("payments", '"""Payments."""', "# a comment\n\n"), ("payments", "  # noqa", "   "),
    ("payments", "\nclass Base", "\n\n \n# a base\nclass Base"),
    ("payments", '"Pay.", timeout_seconds=30', '\n    "Pay (now).",  # )\n\n    timeout_seconds=PREVIEWED'),
    ("payments", "import Decimal\n", "import (\n    Context,\n    Decimal,  # exact\n)\nimport os\n"),
    ("payments", PAYMENTS, PAYMENTS.replace("\n", "\r\n")), ("payments", DEEP + AFTER, AFTER + DEEP),
    *(("payments", text, f"{text}9") for text in ("times=2", "UNUSED = 1", "PREVIEWED = 3", "limit): return UNUSED")),
    *((file, text, f"{text}9") for file, text in [("_rules", "return 31"), ("late", "return 53"), ("rates", "= 71")]),
]  # fmt: skip
REACHED = {"payments": "* 19|: 100|= 120|= 8|= 7|+ 11|* 13|return 17|= 5", "_rules": "= 23|* 29", "_lazy": "37"}
REACHED |= {"_stars": "= 41|= 43", "late": "47", "_impl": "59|61", "rates": "67"}
CHANGED = [
    ("payments", "amount + LIMITS", "amount - LIMITS"), ("payments", "# kept   ", "# kept"),
    ("payments", "first\n\n", "first\n"), ("payments", "import Decimal", "import Context as Decimal"),
    ("payments", "json as j", "pickle as j"), ("payments", "collections.abc import", "typing import"),
    ("_impl", "Kind = str", "Kind = int"),
    *((file, text, f"{text}9") for file, texts in REACHED.items() for text in texts.split("|")),
]  # fmt: skip
ROUTES = [  # top of the tool's file; its body; __init__ of the packages `tools.k` and `k`; their module `d`
    *(("from .k import c", "return c.RATE", init, "from . import c") for init in [
        "", "from . import c", "from . import c as c", "from k import c\nfrom . import c",
        "import k.c\nfrom .d import c", "try:\n from .d import c\nexcept ImportError:\n c = None",
        "match 1:\n case 1:\n  from . import c", "if TYPE_CHECKING:\n from . import c",
        "with x:\n from . import c", "for x in y:\n while x:\n  from . import c"]),
    *((top, body, "from . import c\ndef f(): return c.RATE", "") for top, body in [
        ("from . import k", "return k.c.RATE"), ("from .k import *", "return c.RATE"),
        ("from .k import f", "return f()"), ("", "from k import c; c.RATE"),
        ("from .k import c", "return getattr(c, 'RATE')"), ("import k", "return k.c.RATE"),
        ("from . import k", "x = k; return x.c.RATE"), ("from k import c as x", "return x.RATE")]),
    *(("import k.c", body, init, "c = 1") for body in ("return k.c.RATE", "x = k; return x.c.RATE", "return k.c")
      for init in ("", "c = None", "from .d import c", "from . import c")),
    *((f"class K:\n {place} {what}", "return K", "", "") for what in ("from .k.c import RATE", "import k.c")
      for place in ["", "if 1:", "with x:", "try:\n  1\n except E:", "match 1:\n  case 1:", "class L:", "for x in y:"]),
    *((f"def f():\n global {name}\n if 1: {what}", f"f(); return {name}.RATE", "", "") for name, what in [
        ("RATE", "from .k.c import RATE"), ("c", "from .k import c"), ("c", "import k.c as c"), ("k", "import k.c")]),
    ("c = 0", "global c; from .k import c; return c.RATE", "from . import c", ""),
    ("", "c = 0\n def f():\n  nonlocal c\n  from .k import c\n f(); return c.RATE", "", ""),
    ("from .k import *", "return c.RATE", "__all__ = ['c']", ""), ("import k.c as x", "return x.RATE", "c = 1", ""),
    ("from .k.d import *", "return c.RATE", "__all__ = ['c']", "from . import *"),
    ("from .k import d", "return d", "from .c import *", "x = 1"),
    ("from .k.d import f", "return f()", "from . import c", "from ..k import c\ndef f(): return c.RATE"),
    ("from .k import c\nif c.RATE:\n from .k.d import *", "return x", "", "x = 1"),
]  # fmt: skip
UNREACHED = [("from .k import c", "return c()", "from .c import c", ""), ("import k.c", "return k.x", "x = 1", "")]
UNREACHED += [("import k.c", "return k.c()", "from .c import c", ""), ("from .k import *", "return d.x", "", "x = 1")]
WORDS = st.text(st.characters(exclude_characters="\\\"'\r", exclude_categories=["Cs", "Cc"]), max_size=12)


def write(folder: Path, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, newline="")


def code_in(folder: Path, files: Mapping[str, str] = FILES, name: str = "pay") -> Code:
    write(folder, files)
    tools, problems, _ = read_tools(folder, ())
    assert not has_mistakes(problems) and len(problems) == len(code_of(tools[name]).notes), "each note is a warning"
    return code_of(tools[name])


@pytest.fixture(autouse=True)
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path / "app")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # edits within one second have the same time


@pytest.mark.parametrize(("edit", "changes"), [*((each, False) for each in SAME), *((each, True) for each in CHANGED)])
def test_edits_of_an_app_change_the_code_of_its_tool(tmp_path: Path, edit: tuple[str, str, str], changes: bool) -> None:
    before = code_in(tmp_path / "app")
    file, old, new = edit
    files = {path: text.replace(old, new) if Path(path).stem == file else text for path, text in FILES.items()}
    after = code_in(tmp_path / "app", files)
    assert files != FILES and not before.notes
    assert (before.digest != after.digest) is changes, dict(set(after.parts) ^ set(before.parts))


@pytest.mark.parametrize(("route", "count"), [*((each, 2) for each in ROUTES), *((each, 1) for each in UNREACHED)])
def test_each_static_import_leads_to_its_module(tmp_path: Path, route: tuple[str, str, str, str], count: int) -> None:
    top, body, init, other = route
    codes = set()
    for rate in (1, 2):
        files = {"tools/pay.py": f"{top}\ndef pay():\n {body}\n"}
        for package in ("k", "tools/k"):
            module = f"def c(): return 0\nRATE = {rate}\nd = RATE\n"
            files |= {f"{package}/__init__.py": init, f"{package}/c.py": module, f"{package}/d.py": other}
        write(tmp_path, files)
        constants = compile(files["tools/pay.py"], tmp_path / "tools/pay.py", "exec").co_consts
        code = next(each for each in constants if isinstance(each, types.CodeType) and each.co_name == "pay")
        codes.add(code_of(types.FunctionType(code, {}), folder=tmp_path))  # nothing is imported
    assert len(codes) == count, codes


def test_the_digest_is_that_of_another_process_folder_and_working_directory(tmp_path: Path) -> None:
    digest = code_in(tmp_path / "app").digest
    assert code_in(tmp_path / "moved").digest == digest
    shutil.copytree(tmp_path / "app", tmp_path / "linked", copy_function=os.symlink)  # as a mounted volume has them
    assert code_of(read_tools(tmp_path / "linked", ())[0]["pay"]).digest == digest
    program = "import sys; sys.path.insert(0, sys.argv[1]); from perdure.apps.folder import *; from perdure.sdk.source "
    program += "import *; print(code_of(read_tools(Path(sys.argv[1]), ())[0]['pay']).digest)"
    called = [sys.executable, "-c", program, str(tmp_path / "app")]
    env = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": str(Path(source.__file__).parents[2])}
    ended = subprocess.run(called, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == digest


def test_what_has_no_source_is_named_and_what_cannot_be_followed_is_taken_whole(tmp_path: Path) -> None:
    made: dict[str, object] = {}
    exec("def typed(): return 1", made)
    for function in (math.sqrt, made["typed"], 5):
        assert (code_of(function).parts[0][1], len(code_of(function).notes)) == ("<no source>", 1)
    unnamed = (lambda function: lambda *given: function(*given))(kept_lines)  # as a decorator without wraps makes it
    assert "source_text:kept_lines" in dict(code_of(unnamed).parts)
    factory = 'from perdure import tool\ndef make(rate):\n    @tool(effect="read")\n    def pay() -> int:\n'
    factory += '        """Pay."""\n        return rate\n    return pay\npay = make(2)\n'
    codes = [code_in(tmp_path / "app", {"tools/a.py": text}) for text in (factory, factory.replace("(2)", "(3)"))]
    wrapped = "import functools\nfrom perdure import tool\ndef twice(pay):\n    @functools.wraps(pay)\n"
    wrapped += '    def inner() -> int: return pay() * 2\n    return inner\ndef _pay() -> int:\n    """Pay."""\n'
    wrapped += '    return 1\npay = tool(effect="read")(twice(_pay))\n'
    codes += [code_in(tmp_path / "app", {"tools/a.py": text}, "_pay") for text in (wrapped, wrapped.replace("2", "3"))]
    assert len({code.digest for code in codes}) == 4
    broken = {"tools/a.py": factory.replace("return rate", "from . import _b; return _b.x"), "tools/_b.py": "x = ("}
    assert len(code_in(tmp_path / "app", broken).notes) == 1


def test_a_hundred_tools_of_one_module_take_less_than_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["from perdure import tool\ndef helper_0(n): return n"]
    for n in range(100):
        lines.append(f"def helper_{n + 1}(n):\n    return helper_{n}(n) + {n}")
        lines.append(f'@tool(effect="read")\ndef tool_{n}(n: int) -> int:\n    """Do."""\n    return helper_{n}(n)')
    code_in(tmp_path / "app", {"tools/many.py": "\n".join(lines)}, "tool_99")
    tools, _, _ = read_tools(tmp_path / "app", ())
    source._parsed.cache_clear()
    begun = process_time()
    assert len({code_of(each).digest for each in tools.values()}) == 100
    assert process_time() - begun < 1
    monkeypatch.setattr(source, "MAX_STATEMENTS", 20)
    assert [len(code_of(tools[name]).notes) for name in ("tool_5", "tool_99")] == [0, 1]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), word=WORDS)
def test_comments_and_docstrings_never_change_the_text_and_literals_do(data: st.DataObject, word: str) -> None:
    def kept(text: str) -> list[str]:
        return [line for line in kept_lines(text, ast.parse(text)) if line is not None]

    lines = PAYMENTS.replace('"""Pay."""', f'"""Pay {word}"""').split("\n")
    text = next(n for n, line in enumerate(lines) if line.startswith("TEXT"))
    line = data.draw(st.sampled_from([n for n in range(len(lines)) if not text < n <= text + 3]))
    inserted = [*lines[:line], *data.draw(st.lists(st.sampled_from(["", "  \t", f"# {word}"]))), *lines[line:]]
    assert kept("\n".join(inserted)) == kept(PAYMENTS)
    number = data.draw(st.sampled_from(["100", "17", "19", "13", "11", "7"]))
    assert kept(PAYMENTS.replace(number, f"{number}5", 1)) != kept(PAYMENTS)
