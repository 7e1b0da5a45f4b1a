"""Pages of reports in a real headless Chromium: three widths, light and dark, printed, and names of tenants as text.

``make test-page PAGES=DIRECTORY`` keeps the screenshots.
"""

from __future__ import annotations

import os
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Final

import pytest
from msgspec import structs

from nodeagent.cli.page import render_page
from nodeagent.cli.report import fleet_summary
from nodeagent.daemon.report_document import Fleet
from tests.support.browser import Browser, running_browser
from tests.support.detailed_reports import HOSTILE, MARKUP, detailed_report
from tests.support.node_reports import fleet

if TYPE_CHECKING:
    from collections.abc import Iterator

KEPT: Final = os.environ.get("NODEAGENT_TEST_PAGES", "")
WIDTHS: Final = (360, 800, 1400)
SCHEMES: Final = {"light": "rgb(255, 255, 255)", "dark": "rgb(15, 20, 25)"}
_FOREIGN: Final = """
[...document.querySelectorAll('*')].filter(each =>
    /^(script|img|iframe|object|embed|a|form|input|base|audio|video|foreignObject)$/i.test(each.tagName)
    || [...each.attributes].some(one => /^on/i.test(one.name) || one.name == 'href' && /^\\w+:/.test(one.value)
        && one.value != 'data:,')
).map(each => each.outerHTML.slice(0, 200))
"""
_OUTSIDE: Final = """
[...document.querySelectorAll('body *')].filter(each => each.getBoundingClientRect().right > window.innerWidth + 1)
.map(each => each.outerHTML.slice(0, 200))
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the pages of an ordinary node, of a node with hostile names, and of a fleet."""
    directory = Path(KEPT or tmp_path_factory.mktemp("pages"))
    directory.mkdir(exist_ok=True)
    hostile = detailed_report("worker-18", HOSTILE, passes=200, conditions=("MemoryPressure",))
    made = [*fleet(20), *(structs.replace(hostile, node=f"gpu-{name}") for name in MARKUP)]
    summary, by_name = Fleet.of(made), {each.node: each for each in made}
    reports = [by_name[each.node] for each in summary.nodes]
    ordinary = detailed_report("worker-17.eu-central-1.example.net")
    (directory / "node.html").write_text(render_page([ordinary], ()))
    (directory / "hostile.html").write_text(render_page([hostile], ()))
    (directory / "fleet.html").write_text(render_page(reports, fleet_summary(summary)))
    return directory


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["node", "hostile", "fleet"])
def test_page_fits_the_window_without_faults_and_requests(
    browser: Browser, pages: Path, name: str, width: int, scheme: str
) -> None:
    url = (pages / f"{name}.html").as_uri()
    browser.open(url, width, scheme)
    title = browser.evaluate("document.title")
    browser.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    picture = browser.screenshot()
    if KEPT:
        (pages / f"{name}-{width}-{scheme}.png").write_bytes(picture)
    assert browser.evaluate(_FOREIGN) == []
    assert browser.evaluate(_OUTSIDE) == []
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == SCHEMES[scheme]
    assert browser.evaluate("document.title") == title != "owned"
    assert browser.evaluate("location.href") == url
    assert browser.faults == []
    assert browser.requested == [url]


def test_names_of_tenants_are_text(browser: Browser, pages: Path) -> None:
    browser.open((pages / "hostile.html").as_uri(), 800, "light")
    text = browser.evaluate("document.body.textContent")
    for each in MARKUP:
        assert each.split("\u202e")[0] in text, each


def test_printed_page_is_black_on_white_with_everything_unfolded(browser: Browser, pages: Path) -> None:
    browser.open((pages / "node.html").as_uri(), 800, "dark")
    browser.emulate_print()
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.evaluate("document.querySelectorAll('details:not([open])').length") > 0
    hidden = "[...document.querySelectorAll('details tr')].filter(each => !each.checkVisibility()).length"
    assert browser.evaluate(hidden) == 0
    printed = browser.pdf()
    if KEPT:
        (pages / "node.pdf").write_bytes(printed)
    assert printed.startswith(b"%PDF")


def test_page_served_by_a_web_server_requests_nothing_else(browser: Browser, pages: Path) -> None:
    requested: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_request(self, *_: object) -> None:
            requested.append(self.path)

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(pages))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        browser.open(f"http://127.0.0.1:{server.server_port}/hostile.html", 800, "light")
        browser.screenshot()
        server.shutdown()
    assert (requested, browser.faults) == (["/hostile.html"], [])
