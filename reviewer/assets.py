"""The stylesheet and the scripts: served from here alone, kept by browsers for as long as their bytes are the same."""

import hashlib
from functools import cache
from pathlib import Path

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

FOLDER = Path(__file__).parent / "static"
MOUNTED_AT = "/assets"
_KEPT = "public, max-age=31536000, immutable"


@cache
def asset(name: str) -> str:
    """The address of a file, which changes with its bytes."""
    digest = hashlib.sha256((FOLDER / name).read_bytes()).hexdigest()[:12]
    return f"{MOUNTED_AT}/{name}?v={digest}"


class Assets(StaticFiles):
    """The files, with word for browsers to keep them."""

    def __init__(self) -> None:
        super().__init__(directory=FOLDER)

    async def get_response(self, path: str, scope: Scope) -> Response:
        """The file; one asked for by its digest never changes."""
        response = await super().get_response(path, scope)
        if response.status_code == 200 and scope["query_string"].startswith(b"v="):
            response.headers["Cache-Control"] = _KEPT
        return response
