"""The dashboard of a real `navia serve` in a real browser: it moves, obeys clicks, asks for the key, and never shows old
numbers as new ones."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from navia.data.sample import CLASSES, unseen_images
from tests.browser.conftest import DESK, PHONE
from tests.serve.server import Server, serving

BATCHING = ("--adapt-batch", "8")
KEY = "a-secret-for-the-dashboard"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(*BATCHING, log=tmp_path_factory.mktemp("serve") / "log") as running:
        yield running


@pytest.fixture
def watched(browser: Any, server: Server) -> Iterator[Any]:
    """The page with its first status. Whatever a test does, it must leave no error and ask no other host."""
    context = browser.new_context(viewport=DESK)
    sheet, complaints, requests = context.new_page(), [], []
    sheet.on("console", lambda message: complaints.append(message.text))
    sheet.on("pageerror", lambda error: complaints.append(str(error)))
    sheet.on("request", lambda request: requests.append(request.url))
    sheet.goto(server.url)
    sheet.locator("#page").wait_for()
    yield sheet
    assert complaints == []
    assert {urlsplit(url).netloc for url in requests if not url.startswith("data:")} == {urlsplit(server.url).netloc}
    context.close()


def until(sheet: Any, check: Callable[[], Any], seconds: int = 30) -> None:
    """Wait for something; the page lives on meanwhile."""
    for _ in range(10 * seconds):
        if check():
            return
        sheet.wait_for_timeout(100)
    raise AssertionError("it did not come: " + sheet.locator("body").inner_text())


def text(sheet: Any, name: str) -> str:
    return sheet.locator(f"#{name}").inner_text()


def send(server: Server, count: int = 16) -> None:
    images = unseen_images().images
    with server.client() as client:
        for start in range(0, count, 16):
            client.predict_many(images[start : min(count, start + 16)])


def state(server: Server) -> dict[str, Any]:
    with server.client() as client:
        return client.status()["adaptation"]


def some_steps(sheet: Any, server: Server) -> None:
    send(server)
    until(sheet, lambda: state(server)["step"] > 0 and int(text(sheet, "step")) > 0)


# ---- what it shows


def test_it_tells_what_is_served(watched: Any, server: Server) -> None:
    assert text(watched, "model") == "embedded"
    assert text(watched, "method") == "navia + tome:24"
    assert text(watched, "state") in ("waiting", "adapting")
    assert text(watched, "policy") == state(server)["policy"]
    names = watched.locator("svg.plot").evaluate_all("plots => plots.map(plot => plot.getAttribute('aria-label'))")
    assert [name.split(",")[0] for name in names] == [
        "Throughput",
        "Latency",
        "Prediction entropy",
        "Discrepancy to the source",
        "Drift of the parameters",
    ]
    assert watched.locator("#events li").last.inner_text().startswith("start")
    assert not watched.locator("#notice").is_visible()
    assert not watched.locator("#key-form").is_visible()


def test_numbers_move_after_predictions(watched: Any, server: Server) -> None:
    with server.client() as client:
        before = client.status()["served"]["images"]
    send(server, 48)
    until(watched, lambda: text(watched, "rate-more") == f"{before + 48:,} images so far")
    until(watched, lambda: int(text(watched, "step")) == state(server)["step"] > 0)
    until(watched, lambda: int(text(watched, "adapted").replace(",", "")) == state(server)["images_adapted"] > 0)
    assert float(text(watched, "p50")) > 0
    until(watched, lambda: watched.locator("svg.plot:has(path.line[d^=M])").count() == 5)
    names = watched.locator("#classes .name").all_inner_texts()
    assert names
    assert set(names) <= set(CLASSES)
    shares = watched.locator("#classes .name + span").all_inner_texts()
    assert sum(int(share.strip("<> %")) for share in shares) == pytest.approx(100, abs=6)


def test_recent_images_appear_with_their_prediction(watched: Any, server: Server) -> None:
    send(server)
    until(watched, lambda: watched.locator("#images figure").count() == 12)
    images = watched.locator("#images img")
    assert min(images.evaluate_all("images => images.map(image => image.naturalWidth)")) >= 28
    assert all(url.startswith("data:image/jpeg;base64,") for url in images.evaluate_all("images => images.map(i => i.src)"))
    label, share, entropy, step = watched.locator("#images figcaption").first.inner_text().split("\n")
    assert label in CLASSES
    assert share.endswith("%")
    assert float(entropy.removeprefix("entropy ")) >= 0
    assert int(step.removeprefix("step ")) <= state(server)["step"]
    assert not watched.locator("#images-note").is_visible()


def test_charts_are_read_out_by_pointer_and_by_key(watched: Any, server: Server) -> None:
    some_steps(watched, server)
    plot, tip = watched.locator("svg.plot").nth(1), watched.locator(".tip")
    plot.scroll_into_view_if_needed()
    watched.wait_for_timeout(200)  # scrolling hides a tip
    box = plot.bounding_box()
    watched.mouse.move(box["x"] + box["width"] - 2, box["y"] + 60)
    assert tip.locator("b").inner_text().startswith(("now, ", "1 s ago, "))
    assert tip.locator("div > span:first-child").all_inner_texts() == ["median", "95th percentile", "step"]
    until(watched, lambda: watched.locator(".guide").count() == 5)  # the same moment in every chart
    watched.mouse.move(5, 5)
    assert not tip.is_visible()
    plot.focus()
    watched.keyboard.press("Home")
    first = watched.locator(".guide").first.get_attribute("x1")
    watched.keyboard.press("End")
    assert float(watched.locator(".guide").first.get_attribute("x1")) > float(first)
    watched.keyboard.press("Escape")
    assert not tip.is_visible()


def test_a_tap_on_a_chart_stays_until_another_elsewhere(browser: Any, server: Server) -> None:
    context = browser.new_context(viewport=PHONE, has_touch=True)
    sheet = context.new_page()
    sheet.goto(server.url)
    plot, tip = sheet.locator("svg.plot").nth(2), sheet.locator(".tip")
    plot.scroll_into_view_if_needed()
    sheet.wait_for_timeout(1500)  # scrolling hides a tip, the next status must not
    middle = plot.evaluate(  # of a part, which is redrawn every second: found and measured in one go
        "plot => { const part = [...plot.querySelectorAll('text')].find(text => text.textContent.includes('2 min'));"
        "const box = part.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2] }"
    )
    sheet.touchscreen.tap(*middle)
    sheet.wait_for_timeout(1500)
    assert tip.locator("div > span:first-child").all_inner_texts() == ["Prediction entropy", "step"]
    box = tip.bounding_box()
    assert 0 <= box["x"] <= PHONE["width"] - box["width"]
    sheet.locator("figcaption").nth(2).tap()
    assert not tip.is_visible()
    context.close()


def test_a_label_is_text_whatever_it_holds(watched: Any, server: Server) -> None:
    send(server)
    until(watched, lambda: watched.locator("#classes li").count() > 0)
    label = "<img src=x onerror=alert(1)>"
    shown = watched.evaluate(
        "async label => { const { render } = await import('/sections.js');"
        "const status = await (await fetch('/v1/status')).json();"
        "const changed = {classes: [{label, count: 1}], events: [{time: 0, kind: 'error', text: label}]};"
        "render({...status, ...changed}, 0, {images: 0, shown: []});"
        "return [document.querySelector('#classes .name').textContent, document.querySelector('#events .text').textContent,"
        "document.querySelectorAll('#classes img, #events img').length] }",
        label,
    )
    assert shown == [label, label, 0]


RESTARTED = """async () => {
  const [{ render }, { drawCharts }] = [await import('/sections.js'), await import('/charts.js')];
  const status = await (await fetch('/v1/status')).json();
  Object.assign(status.served, { images: 0, requests: 0, window_images: 0, images_per_second: 0, p50_ms: null });
  Object.assign(status.adaptation, { step: 40, images_adapted: 320, drift: 0.02, step_seconds: null });
  status.classes = [];
  const all = (value) => status.series.time.map(() => value);
  for (const name of ['p50_ms', 'p95_ms', 'entropy', 'discrepancy']) status.series[name] = all(null);
  Object.assign(status.series, { images_per_second: all(0), shed: all(0), drift: all(0.02), step: all(40) });
  render(status, status.started, { images: 0, shown: [] });
  drawCharts(status);
  const ids = ['rate', 'p50-more', 'adapted', 'last-step', 'classes-note', 'images-note'];
  const plots = [...document.querySelectorAll('svg.plot')].map((plot) => plot.textContent.includes('no image yet'));
  return [Object.fromEntries(ids.map((id) => [id, document.getElementById(id).textContent])), plots];
}"""


def test_a_restart_without_images_does_not_contradict_itself(watched: Any) -> None:
    """What comes from the checkpoint is shown; what counts from the start is nothing yet, everywhere alike."""
    some_seconds = "fetch('/v1/status').then(reply => reply.json()).then(status => status.series.time.length)"
    until(watched, lambda: watched.evaluate(some_seconds) > 2)
    told, without_image = watched.evaluate(RESTARTED)
    assert told == {
        "rate": "–",
        "p50-more": "no request yet",
        "adapted": "320",
        "last-step": "none since the start",
        "classes-note": "No image yet.",
        "images-note": "No image yet.",
    }
    assert without_image == [True, True, True, True, False]  # the drift is known


def test_the_page_says_what_its_numbers_are_about(watched: Any, server: Server) -> None:
    with server.client() as client:
        assert client.status()["window"] == 300
    assert "about the last five minutes" in watched.locator(".numbers + .note").inner_text()


# ---- what it does


def test_pause_and_resume(watched: Any, server: Server) -> None:
    watched.get_by_role("button", name="Pause").click()
    until(watched, lambda: text(watched, "state") == "paused")
    assert state(server)["state"] == "paused"
    assert text(watched, "said")
    watched.get_by_role("button", name="Resume").click()
    until(watched, lambda: text(watched, "state") in ("waiting", "adapting"))
    assert state(server)["state"] in ("waiting", "adapting")
    until(watched, lambda: watched.locator("#events .what").all_inner_texts()[:2] == ["resume", "pause"])


def test_reset_wants_a_second_click_in_time(watched: Any, server: Server) -> None:
    some_steps(watched, server)
    reset = watched.locator("#reset")
    reset.click()
    assert reset.inner_text() == "Reset?"
    assert "again within 4 s" in text(watched, "said")
    until(watched, lambda: reset.inner_text() == "Reset")  # too late
    assert state(server)["step"] > 0
    assert text(watched, "said") == ""
    reset.click()
    reset.click()
    until(watched, lambda: text(watched, "step") == "0")
    assert state(server)["step"] == 0
    until(watched, lambda: watched.locator("#events .what").first.inner_text() == "reset")
    assert watched.locator("svg.plot").first.locator(".sign.reset").count() >= 1


def test_a_double_click_or_escape_does_not_roll_back(watched: Any, server: Server) -> None:
    some_steps(watched, server)
    step = state(server)["step"]
    watched.locator("#rollback").dblclick()
    assert text(watched, "rollback") == "Roll back?"
    watched.keyboard.press("Escape")
    assert text(watched, "rollback") == "Roll back"
    assert state(server)["step"] >= step
    assert "rollback" not in watched.locator("#events .what").all_inner_texts()


def test_a_refusal_is_shown(browser: Any, server: Server) -> None:
    sheet = browser.new_page(viewport=DESK)
    sheet.route("**/v1/pause", lambda route: route.fulfill(status=503, json={"error": "not now"}))
    sheet.goto(server.url)
    sheet.get_by_role("button", name="Pause").click()
    until(sheet, lambda: text(sheet, "said") == "not now")
    assert sheet.locator("#said.error").count() == 1
    assert sheet.locator("#pause").is_enabled()
    sheet.close()


# ---- key and contact


def test_the_key_is_asked_for_and_kept_in_the_tab(browser: Any, tmp_path: Path) -> None:
    with serving(key=KEY, log=tmp_path / "log") as keyed:
        sheet = browser.new_page(viewport=DESK)
        sheet.goto(keyed.url)
        sheet.locator("#key-form").wait_for()
        assert not sheet.locator("#page").is_visible()
        sheet.locator("#key").fill("wrong")
        sheet.keyboard.press("Enter")
        until(sheet, lambda: text(sheet, "key-title") == "This key was not accepted")
        sheet.locator("#key").fill(KEY)
        sheet.get_by_role("button", name="Open").click()
        sheet.locator("#page").wait_for()
        assert not sheet.locator("#key-form").is_visible()
        assert text(sheet, "images-note") == "No image yet."
        assert sheet.locator("svg.plot", has_text="no image yet").count() == 5
        sheet.get_by_role("button", name="Pause").click()
        until(sheet, lambda: text(sheet, "state") == "paused")
        assert KEY not in sheet.url
        assert sheet.evaluate("[localStorage.length, document.cookie]") == [0, ""]
        sheet.reload()
        sheet.locator("#page").wait_for()
        assert not sheet.locator("#key-form").is_visible()
        stranger = browser.new_page()  # another tab has to ask again
        stranger.goto(keyed.url)
        stranger.locator("#key-form").wait_for()
        stranger.close()
        sheet.close()


def test_a_lost_contact_is_told_and_found_again(browser: Any, tmp_path: Path) -> None:
    sheet = browser.new_page(viewport=DESK)
    with serving(*BATCHING, log=tmp_path / "log") as short:
        sheet.goto(short.url)
        sheet.locator("#page").wait_for()
        send(short)
        until(sheet, lambda: sheet.locator("#images figure").count() > 0)
        fresh = sheet.locator("#rate").evaluate("number => getComputedStyle(number).color")
        short.kill()
        notice = sheet.locator("#notice")
        notice.wait_for()
        assert text(sheet, "contact") == "No contact"
        until(sheet, lambda: int(re.search(r"No contact for (\d+) s\.", notice.inner_text())[1]) >= 5)
        assert sheet.locator("#rate").evaluate("number => getComputedStyle(number).color") != fresh
        assert sheet.locator("#pause").is_disabled()
        assert sheet.title().startswith("no contact")
    with serving(*BATCHING, "--port", str(urlsplit(short.url).port), log=tmp_path / "log"):
        notice.wait_for(state="hidden")
        until(sheet, lambda: text(sheet, "rate-more") == "0 images so far")
        assert sheet.locator("#images figure").count() == 0  # those of the process before
        assert sheet.locator("#pause").is_enabled()
    sheet.close()


# ---- how it looks


@pytest.mark.parametrize("width", [320, 360, 800, 1200])
def test_nothing_runs_off_the_side(browser: Any, server: Server, width: int) -> None:
    send(server)
    sheet = browser.new_page(viewport={"width": width, "height": 780})
    sheet.goto(server.url)
    until(sheet, lambda: sheet.locator("#images figure").count() > 0)
    sheet.locator("#reset").click()  # the longest words
    assert sheet.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    sides = sheet.evaluate(  # all at once, as parts are redrawn every second
        "() => [...document.querySelectorAll('svg.plot, button, #events, #images figure')]"
        ".map(part => part.getBoundingClientRect()).map(box => [box.left, box.right])"
    )
    assert len(sides) > 8
    assert all(left >= 0 and right <= width for left, right in sides)
    sheet.close()


def test_dark_mode_turns_paper_and_ink(browser: Any, server: Server) -> None:
    seen = {}
    for scheme in ("light", "dark"):
        sheet = browser.new_page(viewport=DESK, color_scheme=scheme)
        sheet.goto(server.url)
        style = "getComputedStyle(document.documentElement)"
        seen[scheme] = sheet.evaluate(f"[{style}.backgroundColor, {style}.color]")
        sheet.close()
    brightness = {key: [sum(map(int, c[4:-1].split(","))) for c in colours] for key, colours in seen.items()}
    assert brightness["light"][0] > 700 > 150 > brightness["light"][1]
    assert brightness["dark"][0] < 150 < 600 < brightness["dark"][1]


def test_who_wants_no_motion_gets_none(browser: Any, server: Server) -> None:
    sheet = browser.new_page(viewport=DESK, reduced_motion="reduce")
    sheet.goto(server.url)
    sheet.locator("#page").wait_for()
    sheet.evaluate("document.getElementById('state').className = 'badge adapting'")
    running = "getComputedStyle(document.getElementById('state'), '::before').animationName"
    assert sheet.evaluate(running) == "none"
    sheet.close()


# ---- what it is made of


def mapped(sheet: Any, module: str, function: str, values: list[Any]) -> list[Any]:
    """What an exported function makes of each value."""
    script = "async ([module, name, values]) => values.map((await import(module))[name])"
    return sheet.evaluate(script, [module, function, values])


@pytest.mark.parametrize(
    ("module", "function", "told"),
    [
        ("/format.js", "number", {None: "–", 0: "0", 0.0042: "0.0042", 0.5: "0.50", 12.345: "12.3", 123.4: "123"}),
        ("/format.js", "number", {12345.6: "12,346"}),
        ("/format.js", "duration", {0: "0 s", 59: "59 s", 75: "1 min 15 s", 8045: "2 h 14 min", 180000: "2 d 2 h"}),
        ("/format.js", "ago", {0.2: "just now", 12: "12 s ago", 75: "1 min ago", 8045: "2 h ago"}),
        ("/format.js", "percent", {0: "0 %", 0.004: "< 1 %", 0.235: "24 %", 0.999: "> 99 %", 1: "100 %"}),
        ("/format.js", "count", {1234: "1,234", 2500000: "2.50 M"}),
        ("/charts.js", "ticks", {5: [0, 2, 4, 6], 0.3: [0, 0.1, 0.2, 0.3], 290: [0, 100, 200, 300]}),
    ],
)
def test_numbers_and_times_are_written_for_people(watched: Any, module: str, function: str, told: dict[Any, Any]) -> None:
    assert mapped(watched, module, function, list(told)) == list(told.values())


def test_a_missing_value_is_a_gap_and_a_lonely_one_a_dot(watched: Any) -> None:
    draw = "async points => (await import('/charts.js')).strokes(...points, 10)"
    drawn = watched.evaluate(draw, [[0, 1, 2, 3, 4, 20, 21], [5, 6, None, 7, None, 8, 9]])
    assert drawn == {"line": "M0.0,5.0L1.0,6.0M20.0,8.0L21.0,9.0", "dots": "M3.0,7.0h0"}
    drawn = watched.evaluate(draw, [[0, 1, 20, 21], [1, 1, 1, 1]])
    assert drawn["line"] == "M0.0,1.0L1.0,1.0M20.0,1.0L21.0,1.0"


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_the_stream_is_read_however_it_is_cut(watched: Any, size: int) -> None:
    sent = ': still here\n\nid: 7\r\nevent: status\r\ndata: {"a":\r\ndata:  "ü\u2028"}\r\n\r\n'
    sent += "data\n\nevent: other\rdata:x\r\r\nlost"
    seen = watched.evaluate(
        "async ([sent, size]) => { const { readEvents } = await import('/connection.js');"
        "const bytes = new TextEncoder().encode(sent), seen = [];"
        "const body = new ReadableStream({start(way) {"
        "for (let i = 0; i < bytes.length; i += size) way.enqueue(bytes.slice(i, i + size)); way.close(); }});"
        "for await (const one of readEvents(body)) seen.push([one.event, one.data]); return seen }",
        [sent, size],
    )
    assert seen == [["status", '{"a":\n "ü\u2028"}'], ["message", ""], ["other", "x"]]
