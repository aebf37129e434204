"""The page in a browser, used as a person would, against toy answers; once, slowly, against the zoo on Ray."""

import hashlib
import io
import itertools
import json
import shutil
import socket
import time
from dataclasses import asdict

import numpy as np
import pytest
from PIL import Image

from tests.serve import web

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install 'retable[dev]'")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.skipif(not CHROMIUM, reason="no browser here: apt-get install chromium"),
    # Of Playwright's own, and of Ray's in the slow one: sockets and pipes that they leave to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]
TOKEN = "a-token-for-tests"
SECTIONS = ("style", "audio", "weather", "rl", "others", "tables", "models")
PIXELS = "canvas => Array.from(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data)"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as play:
        launched = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--mute-audio"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with web.served(tmp_path_factory.mktemp("page")) as url:
        yield url


@pytest.fixture
def opened(browser, address):
    """Open the page; at the end nothing may have been complained of, and nothing asked of anybody else."""
    contexts, said = [], []

    def open_page(url=address, wait=True, routes=(), script="", **options):
        contexts.append(browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options)))
        page = contexts[-1].new_page()
        page.set_default_timeout(15_000)
        page.complaints = said
        page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: (said.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: request.url.startswith((url, "blob:", "data:")) or said.append(request.url))
        for pattern, answer in routes:
            page.route(pattern, answer)
        page.add_init_script(script)
        page.goto(url)
        if wait:
            page.wait_for_selector("#models:not([hidden])")
            page.wait_for_selector("#tables:not([hidden])")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []


def expected(page, *words):
    """Take out of what the browser complained of the failed answers that a test has it meet."""
    page.complaints[:] = [text for text in page.complaints if not any(word in text for word in words)]


def until(page, true):
    """Wait for what only this side sees; the page's requests are answered meanwhile."""
    for _ in range(500):
        if true():
            return
        page.wait_for_timeout(10)
    pytest.fail("it did not come")


def part(wanted, content, most, media):
    """Return the answer of a server that sends `most` bytes at once to a `Range` header."""
    first, last = wanted.removeprefix("bytes=").split("-")
    body = content[int(first) : int(last or len(content)) + 1][:most]
    place = f"bytes {first}-{int(first) + len(body) - 1}/{len(content)}"
    return {"status": 206, "body": body, "headers": {"Content-Range": place, "Content-Type": media}}


def drop(page, data):
    """Drop a file on the field, as from a desktop."""
    files = page.evaluate_handle(
        """bytes => { const files = new DataTransfer();
        files.items.add(new File([new Uint8Array(bytes)], "photograph.png", {type: "image/png"})); return files; }""",
        list(data),
    )
    page.dispatch_event("#drop", "drop", {"dataTransfer": files})


def test_a_photograph_that_is_dropped_is_painted_and_compared(opened):
    page = opened()
    page.wait_for_selector("#styles button >> nth=1 >> img")  # styles have pictures before the first photograph
    assert page.eval_on_selector_all("#styles img", "all => all.map(image => image.naturalWidth)") == [200, 200]
    assert page.locator("#compare").is_hidden()
    drop(page, web.example_picture())
    page.wait_for_selector("#painted:has-text('great wave, in')")
    assert page.eval_on_selector("#after", "image => image.naturalWidth") == 80
    page.focus("#slide")
    before = page.eval_on_selector("#after", "image => image.style.clipPath")
    page.keyboard.press("ArrowRight")
    assert (before, page.eval_on_selector("#after", "image => image.style.clipPath")) == (
        "inset(0px 0px 0px 50%)", "inset(0px 0px 0px 51%)",
    )  # fmt: skip
    page.wait_for_selector("#styles button >> nth=1 >> img")
    page.click("#styles button >> nth=1")
    page.wait_for_selector("#painted:has-text('onerror=alert(1)>, in')")
    assert page.get_attribute("#styles button >> nth=1", "aria-pressed") == "true"
    drop(page, b"no picture")
    page.wait_for_selector("#painted.bad:has-text('cannot read this file')")


def test_the_comparison_is_dragged_by_mouse_and_finger(opened):
    page = opened(has_touch=True)
    drop(page, web.example_picture())
    page.wait_for_selector("#painted:has-text('great wave, in')")
    page.locator("#compare").scroll_into_view_if_needed()
    box = page.locator(".pair").bounding_box()
    fingers = page.context.new_cdp_session(page)

    def point(kind, share, touch):
        x, y = box["x"] + share * box["width"], box["y"] + box["height"] / 2
        if touch:
            points = [] if kind == "End" else [{"x": x, "y": y}]
            fingers.send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": points})
            return
        page.mouse.move(x, y, steps=3)
        if kind != "Move":
            page.mouse.down() if kind == "Start" else page.mouse.up()

    for touch in (False, True):
        point("Start", 0.6, touch)
        for place in (0.5, 0.4, 0.3, 0.2):
            point("Move", place, touch)
            page.wait_for_timeout(30)
        assert page.input_value("#slide") == "20"
        point("Move", 1.3, touch)  # beyond the picture
        page.wait_for_timeout(30)
        assert page.input_value("#slide") == "100"
        point("End", 1.3, touch)
        assert page.eval_on_selector("#after", "image => image.style.clipPath") == "inset(0px 0px 0px 100%)"


HOLD = """() => { const read = createImageBitmap;
    window.createImageBitmap = async (...all) => {
        if (!window.release) await new Promise((done) => { window.release = done; });
        return read(...all);
    };
}"""


def test_the_photograph_that_is_chosen_last_is_shown(opened):
    page, held = opened(), []

    def widths():
        return [page.eval_on_selector(f"#{id}", "image => image.naturalWidth") for id in ("before", "after")]

    def choose(width):
        file = io.BytesIO()
        Image.new("RGB", (width, 30)).save(file, "PNG")
        drop(page, file.getvalue())
        until(page, lambda: widths() == [width, width])

    page.wait_for_selector("#styles button >> nth=1 >> img")
    page.evaluate(HOLD)
    drop(page, web.example_picture())
    page.wait_for_function("!!window.release")
    choose(40)
    page.evaluate("window.release()")
    page.wait_for_timeout(400)
    assert widths() == [40, 40]
    page.route("**/page/example.jpg", lambda route: held.append(route))
    page.click("#example")
    until(page, lambda: held)
    choose(50)
    with page.expect_response("**/page/example.jpg"):
        held[0].continue_()
    page.wait_for_timeout(400)
    assert widths() == [50, 50]


def test_why_a_file_is_refused_stands_where_one_looks_and_the_old_picture_goes(opened):
    page = opened(viewport={"width": 390, "height": 844})
    good, places = web.example_picture(), []
    for bad in (b"no picture", None):  # that the browser cannot read, and that the server refuses
        drop(page, good)
        page.wait_for_selector("#painted:not(.bad):has-text('great wave, in')")
        assert page.locator("#compare").is_visible()
        if bad is None:
            refusal = {"status": 413, "json": {"detail": "6000 x 6000 pixels"}}
            page.route("**/v1/style/**", lambda route: route.fulfill(**refusal))  # noqa: B023
        drop(page, bad or good)
        page.wait_for_selector("#painted.bad")
        assert page.locator("#compare").is_hidden()
        places.append([page.locator(place).bounding_box() for place in ("#drop", "#painted", "#styles")])
    for field, line, tiles in places:
        assert field["y"] < line["y"] < tiles["y"] and line["y"] - field["y"] < 400
    page.complaints[:] = [text for text in page.complaints if "413" not in text]


def test_an_old_result_does_not_stand_beside_why_there_is_no_new_one(opened):
    page = opened(reduced_motion="reduce")
    for press, result, route in (
        ("#take", "#scrub", "**/v1/weather?*"),
        ("#ask button", "#hits", "**/v1/audio?*"),
        ("#simulate button >> nth=0", "#runs", "**/v1/rl/**"),
    ):
        page.click(press)
        page.wait_for_selector(result)
        assert page.locator(result).is_visible()
        page.route(route, lambda route: route.fulfill(status=503, json={"detail": f"{result}: more to do"}))  # noqa: B023
        page.click(press)
        page.wait_for_selector(f".bad:has-text('{result}: more to do')")
        assert page.locator(result).is_hidden()
        page.unroute(route)
        page.click(press)
        page.wait_for_selector(f"{result}:visible")
    expected(page, "503")


SHIFTS = """() => { window.shifts = []; new PerformanceObserver(list => list.getEntries().forEach(each =>
    window.shifts.push(
        [each.value, each.sources.map(source => source.node?.id || source.node?.nodeName).join()])))
    .observe({type: "layout-shift", buffered: true}); }"""


@pytest.mark.parametrize("width", [pytest.param(1280, marks=pytest.mark.slow), 390])
def test_nothing_jumps_while_the_page_fills(opened, width):
    slowly = lambda route: (time.sleep(0.1), route.continue_())  # noqa: E731
    page = opened(viewport={"width": width, "height": 844}, routes=[("**/v1/*", slowly), ("**/openapi.json", slowly)])
    page.evaluate(SHIFTS)
    page.wait_for_selector("#styles button >> nth=1 >> img")
    drop(page, web.example_picture())
    page.wait_for_selector("#painted:has-text('great wave, in')")
    page.wait_for_timeout(300)
    shifts = page.evaluate("window.shifts")
    assert sum(value for value, _ in shifts) < 0.02, shifts


def test_it_works_below_a_prefix(browser, tmp_path):
    with web.served(tmp_path, prefix="/other") as url:
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(5_000)
        page.goto(url)  # without the slash
        page.wait_for_selector("#models:not([hidden])")
        page.wait_for_selector("#styles button >> nth=1 >> img")
        page.click("#take")
        page.wait_for_selector("#scrub:not([hidden])")
        page.click("#models a >> nth=0")
        assert "pixels" in page.inner_text("body")
        context.close()


def test_a_query_finds_recordings_that_play_or_say_why_not(opened):
    page = opened()
    page.fill("#ask input", "rain & thunder?")
    page.keyboard.press("Enter")
    page.wait_for_selector("#hits li:nth-child(3) canvas")
    assert f"{web.HOSTILE} 0.wav from 1 s, cosine 0.500" in page.inner_text("#hits li >> nth=0")
    assert page.locator("#hits img").count() == 0
    page.click("#hits li:nth-child(2) button:has-text('Play')")
    page.wait_for_selector("#hits li:nth-child(2) audio")
    page.wait_for_selector("#hits audio:focus")
    state = page.eval_on_selector(
        "#hits audio",
        """player => new Promise(done => player.readyState ? done(player.duration)
        : player.onloadeddata = () => done(player.duration))""",
    )
    assert state == 2
    page.route("**/v1/audio/*", lambda route: route.fulfill(status=404, json={"detail": "the file is gone"}))
    page.click("#hits li:nth-child(3) button:has-text('Play')")
    page.wait_for_selector("#hits li:nth-child(3) .bad:has-text('the file is gone')")
    assert page.locator("#hits").is_visible()
    expected(page, "404")
    page.fill("#ask input", "?")
    page.route("**/v1/audio?q=*", lambda route: route.fulfill(status=200, json={"hits": []}))
    page.click("#ask button")
    page.wait_for_selector("#heard:has-text('0 recordings for “?”')")


def test_a_recording_longer_than_one_answer_plays_and_the_waves_are_drawn_on(opened):
    held, ranges = [], []

    def recording(route):
        wanted = route.request.headers.get("range", "")
        if wanted == "bytes=0-4194303":  # to draw it
            held.append((route, wanted))
            return
        ranges.append(wanted)
        if wanted:
            route.fulfill(**part(wanted, web.sound(), 20_000, "audio/wav"))
        else:
            route.fulfill(status=413, json={"detail": "ask for a range of at most 67108864"})

    page = opened(routes=[("**/v1/audio/*", recording)])
    page.click("#ask button")
    until(page, lambda: held)
    page.click("#hits li:nth-child(2) button:has-text('Play')")
    page.wait_for_selector("#hits li:nth-child(2) audio:focus")
    assert ranges == ["bytes=0-", "bytes=20000-"]
    for count in (1, 2, 3):
        until(page, lambda: held)
        route, wanted = held.pop()
        route.fulfill(**part(wanted, web.sound(), 1 << 20, "audio/wav"))
        page.wait_for_selector(f"#hits li:nth-child({count}) canvas")
    assert page.inner_text("#heard").startswith("3 recordings for")


def test_a_forecast_is_scrubbed_beside_the_truth_if_there_is_one(opened, tmp_path):
    page = opened(reduced_motion="reduce")
    page.click("#take")
    page.wait_for_selector("#scrub:not([hidden])")
    page.wait_for_selector("#foretold:has-text('sequence 9 of 16; 32 lead times of 15 minutes')")
    steps, truth = web.steps()

    def iou(wet, rain):
        wet, rain = wet[rain != 2], rain[rain != 2] == 1
        return f"{(wet & rain).sum() / max(1, (wet | rain).sum()):.3f}"

    whole = iou(steps >= 100, truth)
    assert page.inner_text("#iou") == f"IoU 1.000 at +0 h 15, {whole} over all lead times"
    first = page.eval_on_selector("#seen", PIXELS)
    assert np.array(first).reshape(36, 36, 4)[..., 0].tolist() == np.choose(truth[0], [242, 42, 150]).tolist()
    page.focus("#time")
    for _ in range(7):
        page.keyboard.press("ArrowRight")
    assert page.inner_text("#iou") == f"IoU {iou(steps[7] >= 100, truth[7])} at +2 h 00, {whole} over all lead times"
    assert page.get_attribute("#time", "aria-valuetext") == "+2 h 00" == page.inner_text("#lead")
    assert f"rain on {100 * (steps[7] >= 100).mean():.0f} % of the pixels" in page.get_attribute("#map", "aria-label")
    page.fill("#threshold", "180")
    assert page.inner_text("#iou") == "IoU 0.000 at +2 h 00, 0.000 over all lead times"
    page.click("#play")
    page.wait_for_selector("#lead:not(:has-text('+2 h 00'))")
    assert page.inner_text("#play") == "Pause"
    page.click("#play")
    np.savez(tmp_path / "mine.npz", images=np.zeros((4, 11, 36, 36), np.float32))
    page.set_input_files("#forecast input", tmp_path / "mine.npz")
    page.select_option("#forecast select", "roxi_0004")
    page.click("#forecast button")
    page.wait_for_selector("#foretold:has-text('mine.npz; 32 lead times')")
    assert page.locator("#seen").is_hidden() and page.locator("#map").is_visible()


def test_policies_run_side_by_side(opened):
    page = opened()
    page.select_option("#simulate select[name=steps]", "100")
    page.fill("#seed", "7")
    page.click("#simulate button >> nth=0")
    page.wait_for_selector("#acted:has-text('Return over 100 steps with seed 7: dense 150, snip-95 150.')")
    assert page.inner_text("#run-play") == "Pause"
    page.click("#run-play")
    page.fill("#step", "9")
    drawn = "canvas => canvas.toDataURL()"
    canvases = [page.eval_on_selector(f"#runs article:nth-child({n}) canvas", drawn) for n in (1, 2)]
    page.fill("#step", "99")
    canvases.append(page.eval_on_selector("#runs article:nth-child(1) canvas", drawn))
    empty = page.evaluate("Object.assign(document.createElement('canvas'), {width: 640, height: 300}).toDataURL()")
    assert len({*canvases, empty}) == 4
    assert [page.inner_text(f"#runs article:nth-child({n})").split("\n") for n in (1, 2)] == [
        ["dense", "", "1,000 weights (100.0 %), 4 kB", "", "Return 150.0 after 100 steps, at 5.0 m"],
        ["snip-95", "", "50 weights (5.0 %), 1 kB", "", "Return 150.0 after 100 steps, at 10.0 m"],
    ]


def test_policies_come_one_after_the_other_and_one_that_fails_takes_none_along(opened):
    models = [{**asdict(web.MODELS[5]), "variant": f"snip-{n}", "sha256": f"{n}" * 64} for n in range(4)]
    held = []
    routes = [
        ("**/v1/models", lambda route: route.fulfill(json=models)),
        ("**/v1/rl/**", lambda route: held.append(route)),
    ]
    page = opened(routes=routes, reduced_motion="reduce")
    page.click("#simulate button >> nth=0")
    for place in range(4):
        until(page, lambda: held)
        page.wait_for_timeout(60)
        assert len(held) == 1
        if place == 1:
            held.pop().fulfill(status=503, json={"detail": "more to do"})
            continue
        held.pop().fulfill(json=web.episode(0, 100, False))
        page.wait_for_selector(f"#runs article:has-text('snip-{place}') canvas")
    page.wait_for_selector("#acted:has-text('snip-3 150. snip-1: more to do.')")
    assert page.inner_text("#run-play") == "Play" and page.input_value("#step") == "0"  # nothing moves by itself
    assert page.locator("#runs article:visible").count() == 3 and page.locator("#watch").is_visible()
    expected(page, "503")


def test_a_file_is_answered_by_a_task_beside_the_papers_or_says_why_not(opened):
    page = opened()
    page.set_input_files("#give input[type=file]", {"name": "a b.txt", "mimeType": "text/plain", "buffer": b"<b>1"})
    page.fill("#give input[name=set]", "threshold=0.5  name=x")
    page.click("#give button")
    page.wait_for_selector("#answer:visible")
    assert json.loads(page.text_content("#answer-text")) == {"read": "<b>1", "set": ["threshold=0.5", "name=x"]}
    assert page.get_attribute("#answer-save", "download") == "a b-answer.json"
    assert page.get_attribute("#give input[type=file]", "accept") == ".png,.txt"
    picture = {"name": "p.png", "mimeType": "image/png", "buffer": web.example_picture()}
    page.set_input_files("#give input[type=file]", picture)
    page.click("#give button")
    page.wait_for_selector("#answer-picture:visible")
    assert page.locator("#answer-text").is_hidden() and page.get_attribute("#answer-save", "download") == "p-answer.png"

    page.route("**/v1/fifth/**", lambda route: route.fulfill(status=422, json={"detail": "the file: no numbers"}))
    page.click("#give button")
    page.wait_for_selector("#answered.bad:has-text('the file: no numbers')")
    assert page.locator("#answer").is_hidden()
    expected(page, "422")


def test_models_that_are_exchanged_under_an_open_page_are_asked_for_again(opened):
    old = [{**asdict(model), "sha256": model.sha256.replace(model.sha256[0], "a")} for model in web.MODELS]
    page = opened(routes=[("**/v1/models", lambda route: route.fulfill(json=old))])
    page.click("#styles button >> nth=1")
    page.unroute("**/v1/models")
    drop(page, web.example_picture())
    page.wait_for_selector("#painted.bad:has-text('The server has other models now, and this page their list')")
    assert page.get_attribute("#styles button >> nth=1", "aria-pressed") == "true"
    drop(page, web.example_picture())
    page.wait_for_selector("#painted:not(.bad):has-text('onerror=alert(1)>, in')")
    page.click("#simulate button >> nth=0")
    page.wait_for_selector("#runs canvas")
    page.route("**/v1/style/**", lambda route: route.fulfill(status=404, json={"detail": "nothing here"}))
    page.click("#styles button >> nth=0")  # the list is the same: the server's own words
    page.wait_for_selector("#painted.bad:has-text('nothing here')")
    expected(page, "404")


def test_tables_are_read_with_their_claims(opened):
    page = opened()
    assert "2 tables and figures; claims: 2 hold, 2 do not hold, 2 not tested" in page.inner_text("#filled")
    page.click("#parts summary >> nth=0")
    page.wait_for_selector("#parts table")
    assert page.inner_text("#parts tbody tr >> nth=0").split("\t") == [
        f"U-Net {web.HOSTILE}",
        "0.250",
        "0.200",
        "+0.050",
    ]
    assert page.inner_text("#parts tbody tr >> nth=1").split("\t") == ["half precision", "absent", "0.300", "–"]
    assert page.inner_text("#parts .smoke").startswith("Smoke scale: it proves the path")
    assert "Generated rain." in page.locator("#parts p.meta").all_inner_texts()
    assert page.locator("ul.claims .v").all_inner_texts() == ["holds", "does not hold", "not tested at this scale"]
    assert page.locator("#parts img").count() == 0
    page.click("#parts tbody a")
    assert page.evaluate("location.hash") == f"#model-{'4' * 64}"
    assert page.inner_text("tr:target th") == "weather / toy"
    page.click("#parts summary >> nth=1")
    page.wait_for_selector("#parts img.drawn[alt='IoU on the test set']")
    assert "secret" not in page.content()


def test_a_table_at_two_scales_is_counted_once_and_what_the_server_does_not_have_is_not_shown(opened):
    paths = {"paths": {"/v1/audio": {"get": {}}, "/v1/tables": {}}}
    entries = [
        {"name": "rl/table1", "title": "Bytes", "at": at, "filled": 1, "claims": claims}
        for at, claims in (("small", {"holds": 2, "not separable": 1}), ("quick", {"holds": 1}))
    ]
    entries.insert(0, {**entries[0], "at": "paper", "filled": 0, "claims": {"not tested at this scale": 3}})
    routes = [("**/v1/tables", lambda route: route.fulfill(json=entries))]
    page = opened(routes=[*routes, ("**/openapi.json", lambda route: route.fulfill(json=paths))])
    assert page.locator("#video").is_hidden() and page.locator("#add").is_hidden()
    assert page.inner_text("#filled") == "1 table; claims: 2 hold, 1 not separable."
    assert page.locator("#parts summary").count() == 3


NO_CLIPBOARD = "Object.defineProperty(navigator, 'clipboard', {value: undefined})"
"""As on plain http beyond localhost."""


def test_a_search_says_how_likely_its_hits_are_by_chance_and_copies_no_path_without_a_clipboard(opened):
    answer = {"hits": [{"id": "a", "file": "a.wav", "offset": 0.0, "score": 0.5}], "p": 0.37}
    page = opened(routes=[("**/v1/audio?*", lambda route: route.fulfill(json=answer))], script=NO_CLIPBOARD)
    for verdict, told in (("doubtful", True), ("found", False)):
        answer["verdict"] = verdict
        page.fill("#ask input", verdict)
        page.click("#ask button")
        page.wait_for_selector(f"#heard:has-text('1 recordings for “{verdict}”')")
        assert page.locator("#hits li").count() == 1  # shown in either case
        assert "a.wav from 0 s" in page.inner_text("#hits li")
        assert page.locator("#hits button").all_inner_texts() == ["Play"]
        words = "Perhaps not here: words at random find as much in 37 % of cases."
        assert (words in page.inner_text("#heard")) == told


HURRY = "const wait = setTimeout; window.setTimeout = (work, time, ...more) => wait(work, time / 10, ...more)"
"""The page's pauses between two questions are a tenth as long."""


def videos(ids, job):
    """Return routes of a server that takes videos, whose jobs are called `ids`, and asks `job` about them."""
    paths = {"paths": {"/v1/style/{style}/video": {}, "/v1/audio": {"post": {}}, "/v1/tables": {}}}
    left = iter(ids)
    return [
        ("**/openapi.json", lambda route: route.fulfill(json=paths)),
        ("**/v1/style/*/video?*", lambda route: route.fulfill(status=202, json={"id": next(left), "state": "queued"})),
        ("**/v1/jobs/**", job),
    ]


def choose_film(page, folder):
    (folder / "film.mp4").write_bytes(b"film")
    page.set_input_files("#film input", folder / "film.mp4")


def test_a_video_is_a_job_that_can_be_watched_and_cancelled(opened, address, tmp_path):
    states = [
        {"state": "queued", "ahead": 1},
        {"state": "running", "progress": 0.5, "frames": 12, "frames_total": 24, "seconds_left": 7.2},
    ]
    asked, ranges = [], []

    def job(route):
        asked.append((route.request.method, route.request.url.partition("/v1/")[2]))
        if route.request.url.endswith("/file"):  # three bytes at once, of four
            ranges.append(wanted := route.request.headers["range"])
            route.fulfill(**part(wanted, b"film", 3, "video/mp4"))
        else:
            route.fulfill(status=200, json=states.pop(0) if len(states) > 1 else states[0])

    page = opened(routes=videos(["a/b"] * 2, job), script=HURRY)
    choose_film(page, tmp_path)
    page.click("#film button")
    page.wait_for_selector("#filmed:has-text('running, 12 of 24 frames, about 8 s left')")
    assert page.eval_on_selector("#progress", "bar => bar.value") == 0.5
    states[:] = [{"state": "done", "progress": 1}]
    page.wait_for_selector("#filmed-video:not([hidden])", state="attached")
    assert asked[-1] == ("GET", "jobs/a%2Fb/file") and ranges == ["bytes=0-", "bytes=3-"]
    asked.clear()
    states[:] = [{"state": "running", "progress": 0.2}]
    page.click("#film button")
    page.click("#cancel")
    page.wait_for_selector("#filmed:has-text('Cancelled.')")
    assert asked[-1] == ("DELETE", "jobs/a%2Fb") and page.locator("#working").is_hidden()


def test_a_second_video_cancels_the_first_and_has_its_own_controls(opened, tmp_path):
    cancelled, watched = [], []

    def job(route):
        (cancelled if route.request.method == "DELETE" else watched).append(route.request.url.rpartition("/")[2])
        route.fulfill(json={"state": "running", "progress": 0.5})

    page = opened(routes=videos(["one", "two", "three"], job), script=HURRY)
    choose_film(page, tmp_path)
    page.dblclick("#film button")  # the second press comes before the first one's job has a name
    until(page, lambda: cancelled == ["one"] and "two" in watched)
    page.click("#film button")
    until(page, lambda: watched.count("three") >= 2)
    assert cancelled == ["one", "two"] and watched[-2:] == ["three", "three"]
    page.click("#cancel")
    page.wait_for_selector("#filmed:has-text('Cancelled.')")
    assert cancelled == ["one", "two", "three"] and page.locator("#working").is_hidden()


def test_a_video_outlives_answers_that_fail_and_a_reload(opened, tmp_path):
    busy = {"status": 503, "json": {"detail": "more to do"}}
    running = {"json": {"state": "running", "progress": 0.5}}
    answers = [busy]

    def job(route):
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer is None:
            route.abort()
        elif answer.get("status") == 206:
            route.fulfill(**part(route.request.headers["range"], b"film", 3, "video/mp4"))
        else:
            route.fulfill(**answer)

    page = opened(routes=videos(["one"], job), script=HURRY)
    choose_film(page, tmp_path)
    page.click("#film button")
    page.wait_for_selector("#filmed:has-text('more to do; asking again')")
    answers[:] = [None]
    page.wait_for_selector("#filmed:has-text('no answer; asking again')")
    assert page.locator("#cancel").is_visible()
    answers[:] = [running]
    page.wait_for_selector("#filmed:has-text('running')")
    page.reload()
    page.wait_for_selector("#filmed:has-text('running')")
    assert page.locator("#cancel").is_visible()
    answers[:] = [{"json": {"state": "done", "progress": 1}}, busy, {"status": 206}]
    page.wait_for_selector("#filmed-video:not([hidden])", state="attached")
    assert page.locator("#working").is_hidden()
    answers[:] = [{"json": {"state": "done", "progress": 1}}, {"status": 206}]
    page.reload()  # as a phone does that had closed the page when the video came
    page.wait_for_selector("#filmed-video:not([hidden])", state="attached")
    answers[:] = [{"status": 404, "json": {"detail": "no such job"}}]
    page.reload()
    page.wait_for_selector("#filmed.bad:has-text('no such job')")
    page.reload()
    page.wait_for_selector("#tables:not([hidden])")
    assert page.inner_text("#filmed") == "" and page.locator("#working").is_hidden()
    expected(page, "503", "404", "ERR_FAILED")


def test_the_keyboard_alone_reaches_and_does_everything_and_all_has_a_name(opened):
    page = opened(reduced_motion="reduce")
    page.keyboard.press("Tab")
    assert page.inner_text(":focus") == "Skip to the content"
    seen = []
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement === document.body"):
            break
        outline, name = page.evaluate(
            """() => { const at = document.activeElement; return [getComputedStyle(at).outlineStyle
            !== "none" || !!at.closest(".drop"), at.id || at.name || at.textContent]; }"""
        )
        assert outline, name
        seen.append(name)
        if name == "Run the policies":
            page.keyboard.press("Enter")
            page.wait_for_selector("#runs canvas")
    wanted = {"photograph", "example", "colours", "strength", "q", "take", "environment", "seed", "step", "run-play"}
    assert wanted <= set(seen) and any("table 1" in name for name in seen)
    page.click("#take"), page.click("#parts summary >> nth=0")
    page.wait_for_selector("#parts table"), page.wait_for_selector("#scrub:not([hidden])")
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button,input,select,canvas,video,audio,[role=region]")].filter((e) =>
        !(e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.length)).map((e) => e.outerHTML)"""
    )
    assert nameless == []
    levels = page.evaluate(
        "[...document.querySelectorAll('h1,h2,h3')].filter(e => e.offsetParent).map(e => +e.tagName[1])"
    )
    assert levels[0] == 1 and all(after - before <= 1 for before, after in itertools.pairwise(levels))


def contrast(pair):
    """Return the contrast of two colours, `#rgb` or `#rrggbb`, as WCAG 2 has it."""

    def light(value):
        digits = value.lstrip("#")
        digits = digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
        parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted(map(light, pair))
    return (high + 0.05) / (low + 0.05)


def test_a_phone_shows_all_of_it_and_what_is_written_can_be_read(opened):
    page = opened(viewport={"width": 390, "height": 844}, reduced_motion="reduce")
    drop(page, web.example_picture())
    page.click("#ask button"), page.click("#take"), page.click("#simulate button >> nth=0")
    page.click("#parts summary >> nth=0"), page.click("#parts summary >> nth=1")
    for wanted in ("#hits li", "#scrub:not([hidden])", "#runs canvas", "#parts table", "#parts img"):
        page.wait_for_selector(wanted)
    texts = "ink paper, soft tint, faint tint, accent tint, on accent, bad bad-bg, ok ok-bg, maybe maybe-bg"
    texts += ", none none-bg"
    others, papers = "edge paper, body card, accent card", set()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") == 390, scheme
        assert all(page.locator(f"#{section}").is_visible() for section in SECTIONS), scheme
        names = {name for text in (texts, others) for name in text.replace(",", "").split()}
        colours = page.evaluate(
            """names => { const style = getComputedStyle(document.documentElement);
            return Object.fromEntries(names.map(name => [name, style.getPropertyValue(`--${name}`).trim()])); }""",
            [*names],
        )
        papers.add(colours["paper"])
        for pairs, least in ((texts, 4.5), (others, 3)):
            low = [pair for pair in pairs.split(", ") if contrast(map(colours.get, pair.split())) < least]
            assert low == [], scheme
    assert len(papers) == 2


def test_a_token_opens_the_page_and_its_links(browser, tmp_path):
    def closed(route):
        if "authorization" in route.request.headers:
            route.continue_()
        else:
            route.fulfill(status=401, json={"detail": "a token is needed"})

    with web.served(tmp_path, hashlib.sha256(TOKEN.encode()).hexdigest()) as url:
        context = browser.new_context()
        page = context.new_page()
        page.route("**/openapi.json", closed)
        page.goto(url)
        page.wait_for_selector("#token:not([hidden])")
        page.wait_for_selector("#token input:focus")
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        page.wait_for_selector("#status:has-text('a token is needed')")
        page.fill("#token input", TOKEN)
        page.keyboard.press("Enter")
        page.wait_for_selector("#models:not([hidden])")
        page.click("#parts summary >> nth=1")
        page.wait_for_selector("#parts img")
        for link, words in (("What is accepted", "pixels"), ("OpenAPI", '"/v1/models"')):
            page.wait_for_selector("#models:not([hidden])")
            page.click(f"#models a:has-text('{link}')")
            page.wait_for_url("blob:**")
            assert words in page.inner_text("body")
            page.go_back()
        context.close()


@pytest.mark.slow
def test_the_zoo_on_ray_is_used_from_the_page(browser, opened, tmp_path):
    from retable.platform.store.storage import Storage
    from retable.serve.launch import address, choice, server

    storage = Storage.open(tmp_path / "results")
    web.keep(storage, web.table(), "weather-table1-smoke")
    models = choice.choose_models(choice.Wanted(["rl", "style", "weather"], zoo=True), storage)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = address.Address("127.0.0.1", port)
    with server.serving(models, storage, where):
        page = opened(where.url)
        page.set_default_timeout(60_000)
        page.click("#example")
        page.wait_for_selector("#painted:has-text('great wave, in')")
        page.click("#take")
        page.wait_for_selector("#iou:has-text('IoU 0.')")
        page.select_option("#simulate select[name=steps]", "100")
        page.click("#simulate button >> nth=0")
        page.wait_for_selector("#runs article:nth-child(3) canvas")
        page.click("#parts summary")
        page.wait_for_selector("#parts table")
