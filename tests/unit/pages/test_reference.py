"""The reference of the API: all of it, drawn here, and light."""

import re

from perdure.api.app import create_app
from perdure.settings import Settings
from tests.unit.pages.conftest import Browse, SpokenApi


async def test_everything_that_can_be_sent_is_told_without_a_script_or_another_host(
    api: SpokenApi, browse: Browse
) -> None:
    said = create_app(Settings(_env_file=None)).openapi()
    api.answers["/openapi.json"] = 200, said
    page = (await browse("/docs")).text
    for path, item in said["paths"].items():
        for method in item:
            assert f"<strong>{method.upper()}</strong> <code>{path}</code>" in page
    decide = page[page.index("<code>/v1/approvals/{approval_id}/decision</code>") :]
    assert "<code>digest</code>" in decide[: decide.index("</details>")]
    assert len(page.encode()) < 130_000 and not re.findall(r"""(?:src|href)=["'](?:https?:)?//""", page)
