"""The report in a browser, used as a reader would."""

import shutil

import pytest

from retable.platform.report.write import write_report
from retable.platform.store.storage import Storage
from tests.platform.made_table import filled_line

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install 'retable[dev]'")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.skipif(not CHROMIUM, reason="no browser here: apt-get install chromium"),
    # Sockets and pipes that Playwright leaves to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]
SCROLLS = "() => document.documentElement.scrollWidth > document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as play:
        launched = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Write the report of a table at the published scale: one with differences."""
    storage = Storage.open(tmp_path_factory.mktemp("report"))
    filled_line(storage, "paper", published=True)
    write_report(storage)
    write_report(storage, Storage.open(f"{storage.root}/one"), single=True)
    return storage


@pytest.fixture
def opened(browser, report):
    """Open the page; at the end nothing may have been complained of, and nothing asked of the network."""
    contexts, said = [], []

    def open_page(place="report", width=1280, **options):
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **options))
        page = contexts[-1].new_page()
        page.set_default_timeout(5_000)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: request.url.startswith(("file:", "data:")) or said.append(request.url))
        page.goto(f"file://{report.root}/{place}/index.html")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []


@pytest.mark.parametrize("place", ["report", "one"])
def test_a_click_on_a_number_tells_where_it_is_from(opened, place):
    page = opened(place)
    number = page.locator("tr", has=page.locator("th", has_text="fast")).first.locator("button.number").first
    number.click()
    panel = page.locator("#panel")
    panel.locator("summary", has_text="run ").first.click()
    assert panel.locator("h3").inner_text() == number.inner_text()
    assert "retable train line --scale paper --set seed=1" in panel.inner_text()
    points = panel.locator("svg.curve polyline").first.get_attribute("points").split()
    assert len(points) == 3, "an epoch each"
    page.keyboard.press("Escape")
    assert panel.is_hidden() and number.evaluate("button => button === document.activeElement")


def test_columns_sort_by_what_was_measured_and_back(opened):
    page = opened()
    head = page.locator("button.sort[data-place='0']").first
    values = "() => [...document.querySelector('table.numbers').tBodies[0].rows].map(row => row.cells[1].dataset.value)"
    own = page.evaluate(values)
    for order in (-1, 1):
        head.click()
        found = [float(value) for value in page.evaluate(values) if value]
        assert found == sorted(found)[::order] and len(found) > 2
    head.click()
    assert page.evaluate(values) == own


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_nothing_is_cut_and_a_phone_shows_label_and_number(opened, width, scheme):
    page = opened(width=width, color_scheme=scheme)
    assert not page.evaluate(SCROLLS)
    rows = page.locator("table.numbers tbody tr:not(.absent)").all()
    assert len(rows) > 3
    for row in rows:
        row.scroll_into_view_if_needed()
        for cell in (row.locator("th"), row.locator("td").first):
            box = cell.bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= width
    if width == 1280:
        assert page.evaluate("[...document.querySelectorAll('.wrap')].every(w => w.scrollWidth <= w.clientWidth)")
    assert page.evaluate("[...document.images].every(image => image.alt && image.complete && image.naturalWidth)")


def test_differences_can_be_put_away(opened):
    page = opened()
    difference = page.locator("td.difference").first
    assert difference.is_visible()
    page.locator("button[data-toggle=nodiff]").first.click()
    assert difference.is_hidden()
