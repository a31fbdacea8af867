"""`perdure init DIR`: a small complete app to start from."""

from pathlib import Path
from typing import Annotated

import typer

from cli.connection import command
from cli.failures import USAGE
from cli.screen import AsJson, fail, say, say_json
from contracts.errors import CallerError
from perdure.scaffold import scaffold


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that is new or empty.")],
    as_json: AsJson = False,
) -> None:
    """Write a small complete app into DIR, to be changed into your own."""
    try:
        written = scaffold(folder)
    except CallerError as error:
        raise fail(error.message, USAGE) from None
    if as_json:
        say_json({"folder": str(folder), "files": [str(path.relative_to(folder)) for path in written]})
        return
    say(f"Written into {folder}:")
    for path in written:
        say(f"  {path.relative_to(folder)}")
    say(f"Next: read {folder / 'README.md'}, then {command('up', '--app', str(folder))}")
