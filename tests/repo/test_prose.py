"""The prose checker finds the example of each rule, passes the right form, reads no value as a comment, and its list of
findings may only shrink."""

import pytest

from tests.repo.prose import CHECKED, MOST_LEFT, NAMES, RULES, Text, differences, hits, left_to_mend, names, texts

_MODULE = '''"""By name."""
MOST = 2
"""How many."""
class Step:
    name: str
    """For a step."""
    def run(self) -> None:
        """What it runs."""
        raise ValueError(f"the turn of {self.name} goes on")  # until nobody waits
'''
_LONG = " ".join(["word"] * 31)


def found(text: Text) -> set[str]:
    return {hit.rule for hit in hits(text)}


def test_each_rule_finds_its_example_and_passes_the_right_form() -> None:
    wrong = [rule.name for rule in RULES if not rule.pattern.search(rule.finds) or not rule.passes]
    missed = [rule.finds for rule in RULES if rule.name not in found(Text("x.py", 1, "docstring", rule.finds))]
    passed = [rule.passes for rule in RULES if found(Text("x.py", 1, "docstring", rule.passes))]
    assert (wrong, missed, passed) == ([], [], [])


@pytest.mark.parametrize(("path", "source", "expected"), [
    ("x.py", _MODULE, ["1 opening", "3 clause", "6 opening", "8 clause", "9 actor", "9 position"]),
    ("bench/x.py", _MODULE, ["1 opening", "3 clause", "6 opening", "8 clause", "9 actor"]),
    ("x.md", "---\na: anew\n---\nFine.\n```\nanew\n```\n\nDone\nanew.\n\n| a | anew |\n", ["10 idiom", "12 idiom"]),
    ("x.md", f"{_LONG}.\n{_LONG[:-5]}.\n\nBy name.", ["1 long"]),
    ("x.html", '<p title="done anew">{# anew #}Done anew</p>\n<script>do anew</script>', ["1 idiom", "1 idiom"]),
    ("x.js", "show('It is');\nshow(`It is done ${anew} anew`);\n", ["2 idiom"]),
    (".env.example", "A=anew\n# Done\n# anew.\n", ["3 idiom"]),
    ("x.py", 'def run():\n    """`anew` is anew(1)."""\n', []),
])  # fmt: skip
def test_findings_have_the_kind_and_the_line_of_their_text(path: str, source: str, expected: list[str]) -> None:
    assert sorted(f"{hit.line} {hit.rule}" for text in texts(path, source) for hit in hits(text)) == sorted(expected)


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


def test_private_names_of_modules_functions_and_classes_are_found() -> None:
    for name in NAMES:
        assert [hit.line for hit in names(f"x = 1\ndef _{name}(): ...", f"{name}.py")] == [1, 2]


def test_the_list_only_shrinks() -> None:
    left = left_to_mend()
    path, count = next(iter(left.items()))
    assert not list(differences(left, left))
    for other in (left | {"new.py": 1}, left | {path: count + 1}, {"new.py": MOST_LEFT}):
        assert list(differences(other, left)), "more findings than the list"
        assert list(differences(other, other)), "a longer list"
    assert list(differences(left | {path: 0}, left)), "fewer findings than the list"
