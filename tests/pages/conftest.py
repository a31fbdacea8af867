"""The pages in a real browser: the API and the pages as they are served, a module's own database, one Chromium for all.
`site.visit("reviewer")` opens a window that has signed in by the form, as a person does."""

import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, BrowserContext, Locator, Page, Request, ViewportSize, async_playwright, expect

from perdure.activities.providers.registry import Models
from perdure.activities.toolbox.registry import Toolbox
from perdure.api.__main__ import server_config
from perdure.api.app import create_app
from perdure.apps import app_folders, find_apps
from perdure.contracts.turns import Kind
from perdure.local import DataParts
from perdure.settings import Settings
from perdure.worker.queues import tools_of
from tests.conftest import Person, Urls
from tests.doubles.local_server import LocalServer
from tests.harness import Harness
from tests.local_egress import new_client
from tests.served_turns import serve

expect.set_options(timeout=15_000)
NARROW: ViewportSize = {"width": 390, "height": 844}
WIDE: ViewportSize = {"width": 1280, "height": 900}
CORPUS = [
    "<script>window.hit = 1</script>", "<img src=x onerror='window.hit = 1'>",
    "</pre></textarea><svg onload=window.hit=1>", '" onfocus="window.hit=1" autofocus="', "javascript:window.hit=1",
    "{{7 * 7}} {% raw %} ${7*7}", "[click](javascript:window.hit=1) **bold** `code`",
    "\x1b[2J\x1b[31mred\x1b]0;title\x07", "invoice\u202egnp.exe", "pay\u200b\u2060\ufeff\u00ad me",
    "\u05d0\u05d1\u05d2 100 \u05d3 200", "a\u2066b\u2069c\u061c", "\U000e0041\U000e0042hidden tags",
    "<a href='//elsewhere.example'>x</a><base href='//elsewhere.example'>",
    "data-hx-get='/x' <div hx-get=/sign-out hx-trigger=load>",
]  # fmt: skip
UNSEEN = "\x1b\x07\u202e\u200b\u2060\ufeff\u00ad\u2066\u2069\u061c\U000e0041"


@dataclass(slots=True)
class Window:
    context: BrowserContext
    page: Page
    asked: list[Request] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """The browser's errors: of scripts, and of the page's content security policy."""

    async def checked(self) -> None:
        """Checks that the page is accessible (axe-core), without errors, and loads only from this server."""
        found = await Axe().run(self.page)
        assert found.violations_count == 0, found.generate_report()
        assert not self.faults, self.faults
        self.assert_alone()

    def assert_alone(self) -> None:
        assert len({httpx.URL(request.url).netloc for request in self.asked}) == 1, self.asked

    async def assert_inert(self) -> None:
        """Checks that no text runs as markup, and that no character is hidden."""
        assert await self.page.evaluate("window.hit") is None
        assert await self.page.locator("[onfocus], [onerror], [onload], main img, main script, base").count() == 0
        assert not set(await self.page.locator("main").inner_text()) & set(UNSEEN)
        self.assert_alone()

    async def assert_fits(self, path: str = "") -> None:
        """Checks that the page, or the one at this path, fits into the window's width."""
        if path:
            await self.page.goto(path)
        size = self.page.viewport_size
        assert size is not None
        assert await self.page.evaluate("document.documentElement.scrollWidth") <= size["width"], path


@dataclass(slots=True)
class Site:
    url: str
    browser: Browser
    harness: Harness
    app: Any
    people: dict[str, Person]
    open: list[BrowserContext] = field(default_factory=list)
    """The windows of the test."""

    async def window(self, **given: Any) -> Window:
        options = {"viewport": WIDE, "base_url": self.url, **given}
        context = await self.browser.new_context(**options)
        self.open.append(context)
        window = Window(context, await context.new_page())
        window.page.on("request", lambda request: window.asked.append(request))
        window.page.on("pageerror", lambda error: window.faults.append(str(error)))
        window.page.on("console", lambda said: window.faults.append(said.text) if _is_fault(said) else None)
        return window

    async def visit(self, name: str, path: str = "/review", **given: Any) -> Window:
        """A window in which this person has signed in, at a page."""
        window = await self.window(**given)
        answer = await window.context.request.post("/v1/auth/login", data={"token": self.people[name].token})
        assert answer.ok, await answer.text()
        await window.page.goto(path)
        return window

    async def open_approval(self, tool: str, args: dict[str, Any], **given: Any) -> tuple[str, Window]:
        """A call that waits, and a window in which the reviewer has it open; the approval's id."""
        approval = await self.asks(tool, **args)
        return approval, await self.visit("reviewer", f"/review/{approval}", **given)

    async def close(self) -> None:
        while self.open:
            await self.open.pop().close()

    async def asks(self, tool: str = "post", *, agent_id: str = "desk", **args: Any) -> str:
        address = await self.harness.plan((tool, args), agent_id=agent_id)
        (request,) = await self.harness.open(address, "t1.0", agent_id=agent_id)
        return request.request_id


def _is_fault(said: Any) -> bool:
    # Error answers are part of the tests, and the browser logs each.
    return said.type == "error" and "Failed to load resource" not in said.text


def alarm(page: Page) -> Locator:
    """The texts of the page's alerts, without empty ones."""
    return page.get_by_role("alert").filter(has_text=re.compile(r"\S"))


async def decided(page: Page, status: str, by: str) -> None:
    await expect(page.locator("#badge")).to_have_text(status)
    await expect(page.locator("#state")).to_contain_text(by)


async def sign_in(page: Page, token: str, path: str = "/review") -> None:
    await page.goto(f"/sign-in?next={path}")
    await page.locator("details:has(#token) summary").click()
    await page.locator("#token").fill(token)
    await page.locator("form:has(#token) button").click()
    await page.wait_for_url(f"**{path}")


@pytest.fixture(scope="package")
async def browser() -> AsyncIterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert program is not None, "the tests of the pages need Chromium: apt-get install chromium fonts-dejavu-core"
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield running
        await running.close()


@asynccontextmanager
async def pages_at(settings: Settings, port: int = 0) -> AsyncIterator[tuple[str, Any]]:
    """API and pages on a port; their address and the API's application."""
    api = create_app(settings)
    config = server_config(api, settings)
    config.timeout_graceful_shutdown = 1
    listening = LocalServer(config, port)
    await listening.start()
    try:
        yield listening.url, api
    finally:
        api.state.services.wakes.close()
        await listening.stop()


@pytest.fixture(scope="module")
async def page_settings(
    parts: DataParts, urls: Urls, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Settings]:
    assert parts.redis_url is not None and parts.temporal is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEMPORAL_ADDRESS", parts.temporal.address)
        patch.setenv("TEMPORAL_NAMESPACE", parts.temporal.namespace)
        patch.setenv("TEMPORAL_CONFIG_FILE", os.devnull)
        given = {
            "DATABASE_URL": urls.app,
            "REDIS_URL": parts.redis_url,
            "PERDURE_LOCAL": "1",
            "PERDURE_HOME": str(tmp_path_factory.mktemp("pages")),
        }
        yield Settings(_env_file=None, **given)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
async def module_site(
    page_settings: Settings, browser: Browser, harness: Harness, people: dict[str, Person]
) -> AsyncIterator[Site]:
    async with pages_at(page_settings) as (url, app):
        yield Site(url, browser, harness, app, people)


@pytest.fixture
async def site(module_site: Site) -> AsyncIterator[Site]:
    """The module's pages, with the windows of one test."""
    yield module_site
    await module_site.close()


@pytest.fixture(scope="module")
async def workers(harness: Harness) -> AsyncIterator[None]:
    """A worker for all queues, with the shipped agents' own tools and scripts."""
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(new_client())
        toolbox = Toolbox(tools_of(find_apps(app_folders((), examples=True))), lambda name: None, http)
        deps = replace(harness.deps, toolbox=toolbox, models=Models(lambda name: None))
        await serve(stack, replace(harness, deps=deps), (Kind.LLM, Kind.TURNS))
        yield


def routed(app: Any, harness: Harness) -> None:
    """Send the turns of this API to the worker's queues."""
    app.state.services = replace(app.state.services, routing=harness.routing)


@pytest.fixture
async def chat_site(site: Site, workers: None, harness: Harness) -> Site:
    routed(site.app, harness)
    return site
