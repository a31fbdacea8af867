"""The prose checker reads the comments of each language, and no value that looks like one."""

import pytest

from tests.repo.prose import CHECKED, texts

_SQL = "-- One\n-- text.\nSELECT '--no', 'it''s --no';  -- tail\nDO $$ BEGIN\n  -- inside\nEND $$; /* block */\n"
_YAML = "# One\n# text.\na: '#no'  # tail\nb: it's#no\nc: |\n  # no\nd: [\"#no\", x]  # end\n"
_JS = "const a = \"//no\", b = `//no`;  // tail\n// One\n// text.\nfetch('http://no');\n/* A\n   block */\n"
_MAKE = '# One\n# text.\nup: x ## start it\n\t@echo "Hello" # why\n'


@pytest.mark.parametrize(("path", "source", "expected"), [
    ("x.sql", _SQL, [(1, "One\ntext."), (3, "tail"), (5, "inside"), (6, "block")]),
    ("x.yaml", _YAML, [(1, "One\ntext."), (3, "tail"), (7, "end")]),
    ("x.toml", 'a = "#no"  # tail\nb = """\n# no"""\n# One\n', [(1, "tail"), (4, "One")]),
    ("x.js", _JS, [(1, "tail"), (2, "One\ntext."), (5, "A\nblock")]),
    ("x.css", "a { b: url(//no) }\n/* One */\n", [(2, "One")]),
    ("Makefile", _MAKE, [(1, "One\ntext."), (3, "start it"), (4, "Hello"), (4, "why")]),
    (".importlinter", "[a]\nname = a rule\ntype = layers\n", [(2, "a rule")]),
])  # fmt: skip
def test_comments_are_checked_and_values_are_not(path: str, source: str, expected: list[tuple[int, str]]) -> None:
    assert path.endswith(CHECKED)
    assert sorted((text.line, text.words) for text in texts(path, source)) == expected
