"""Ctrl-C at any moment is no traceback."""

import subprocess
import sys

WHILE_IT_IMPORTS = """
import builtins, signal, sys
there = builtins.__import__
def importing(name, *given, **named):
    if name == "perdure.cli.app":
        signal.raise_signal(signal.SIGINT)
    return there(name, *given, **named)
builtins.__import__ = importing
import perdure.__main__
"""


def test_an_interrupt_while_a_command_imports_ends_it_without_a_word() -> None:
    ended = subprocess.run([sys.executable, "-c", WHILE_IT_IMPORTS], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-2, "", "")
