"""The page at / in a real Chromium: a chat, the live engine, keys, failures. Nothing leaves this machine."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Route, expect, sync_playwright

from tests.core.server.served_app import ServedApp
from tests.tiny_model import write_tiny_llama
from tokenloom import LLM
from tokenloom.engine_process.local_client import LocalEngine
from tokenloom.observability.engine_live import EngineLive

pytestmark = pytest.mark.slow

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NEED_BROWSER = "TOKENLOOM_NEED_BROWSER"
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
TIMEOUT_MS = 20_000
MARKUP = '<img src="x" onerror="document.title=1"><b>bold</b> & <script>document.title = 2</script>'

LAYOUT_SHIFT = """() => new Promise((resolve) => {
    const look = () => {
        new PerformanceObserver((list, observer) => {
            observer.disconnect();
            resolve(list.getEntries().reduce((sum, entry) => sum + entry.value, 0));
        }).observe({ type: "layout-shift", buffered: true });
        setTimeout(resolve, 100, 0);
    };
    requestAnimationFrame(() => requestAnimationFrame(look));
})"""
"""How far what was already there has moved, as browsers measure it."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        if os.environ.get(NEED_BROWSER) == "1":
            pytest.fail(f"{NEED_BROWSER}=1, and there is no chromium; apt-get install chromium")
        pytest.skip("there is no chromium; apt-get install chromium")
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    """A tiny model that goes on for a long time."""
    folder = tmp_path_factory.mktemp("model")
    write_tiny_llama(folder, with_tokenizer=True, max_position=100_000, num_layers=1)
    overrides = ("model.dtype=float32", "engine.num_threads=1", "cache.num_blocks=9000")
    llm = LLM(str(folder), overrides, show_progress=False)
    with LocalEngine(llm, observers=[EngineLive(llm.engine)]) as started:
        yield started
    llm.close()


@dataclass(slots=True)
class Visit:
    """The page of a server, and what it did beside what is seen.

    Attributes:
        complaints: errors in the console, and exceptions.
        addresses: every URL that was asked for.
    """

    page: Page
    app: ServedApp
    complaints: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)

    def ask(self, text: str, max_tokens: int | None = None) -> None:
        """Types a question and sends it."""
        if max_tokens is not None:
            self.open_settings()
            self.page.get_by_label("Max tokens").fill(str(max_tokens))
        self.page.get_by_label("Message", exact=True).fill(text)
        self.page.keyboard.press("Enter")

    def open_settings(self) -> None:
        """Unfolds what is about sampling."""
        self.page.locator("#settings").evaluate("(details) => { details.open = true; }")

    def expect_end(self, reason: str) -> None:
        """Waits until the last answer has ended, for this reason."""
        last = self.page.locator(".answer").last
        expect(last.locator(".stats")).to_contain_text(f"end: {reason}")
        expect(last).not_to_have_attribute("aria-busy", "true")

    def answer(self) -> str:
        """The text of the last answer."""
        return self.page.locator(".answer .text").last.inner_text()

    def live(self, name: str) -> str:
        """A number of the engine."""
        return self.page.locator(f'[data-live="{name}"]').inner_text()


@pytest.fixture
def visit(browser: Browser, engine: LocalEngine) -> Iterator[Callable[..., Visit]]:
    """Opens the page of a server with these settings; what goes wrong there fails the test."""
    visits: list[tuple[Visit, tuple[int, ...]]] = []

    def open_page(*, expected: tuple[int, ...] = (), width: int = 1280, keys: tuple[str, ...] = ()) -> Visit:
        app = ServedApp(engine, served_model_names=("tiny",), api_keys=keys)
        context = browser.new_context(viewport={"width": width, "height": 800}, reduced_motion="reduce")
        context.set_default_timeout(TIMEOUT_MS)
        page = context.new_page()
        opened = Visit(page, app)
        visits.append((opened, expected))
        page.on("pageerror", lambda error: opened.complaints.append(str(error)))

        def hear(said: ConsoleMessage) -> None:
            if said.type in ("error", "warning"):
                opened.complaints.append(said.text)

        page.on("console", hear)
        page.on("request", lambda request: opened.addresses.append(request.url))
        page.goto(app.url)
        return opened

    yield open_page
    for opened, expected in visits:
        opened.page.context.close()
        opened.app.close()
        # Chromium itself writes down each answer with a status like these.
        told = tuple(f"the server responded with a status of {status} " for status in expected)
        assert [line for line in opened.complaints if not any(part in line for part in told)] == []
        assert opened.addresses
        assert [url for url in opened.addresses if not url.startswith(f"{opened.app.url}/")] == []


def test_a_question_is_answered_and_the_engine_is_seen_at_work(visit: Callable[..., Visit]) -> None:
    seen = visit()
    page = seen.page
    expect(page.locator("#state-text")).to_have_text("idle")
    kv_map, steps = page.locator("#kv-map"), page.locator("#step-chart")
    before = kv_map.screenshot(), steps.screenshot()
    assert page.evaluate(LAYOUT_SHIFT) < 0.01
    seen.open_settings()
    shift = page.evaluate(LAYOUT_SHIFT)
    seen.ask(MARKUP, max_tokens=300)
    seen.expect_end("length")
    assert seen.answer()
    # The line below the text gives way to it; nothing else moves.
    assert page.evaluate(LAYOUT_SHIFT) == pytest.approx(shift, abs=0.01)
    stats = page.locator(".stats").inner_text()
    assert "300 answer tokens" in stats
    assert "first token" in stats
    assert "tokens/s" in stats
    expect(page.locator('[data-live="num_steps"]')).not_to_have_text("0 in all")
    expect(page.locator('[data-live="ttft_s.count"]')).to_have_text("1")
    expect(page.locator('[data-live="kv.cached"]')).not_to_have_text("0")
    assert seen.live("ttft_s.p50").endswith("s")
    after = kv_map.screenshot(), steps.screenshot()
    assert all(one != other for one, other in zip(before, after, strict=True))
    # Several turns, and a new beginning.
    seen.ask("And then?", max_tokens=5)
    seen.expect_end("length")
    assert page.locator(".question").all_inner_texts() == [MARKUP, "And then?"]
    assert page.locator("#log b, #log img, #log script").count() == 0
    page.get_by_role("button", name="New chat").click()
    assert page.locator(".turn").count() == 0


def test_escape_and_the_button_stop_an_answer_and_free_its_memory(visit: Callable[..., Visit]) -> None:
    seen = visit()
    page = seen.page
    seen.ask("Go on for ever.")
    expect(page.locator(".stats")).to_contain_text("tokens/s")
    expect(page.get_by_role("button", name="Send")).to_be_hidden()
    page.keyboard.press("Escape")
    seen.expect_end("stopped")
    expect(page.locator("#state-text")).to_have_text("idle")
    expect(page.locator('[data-live="kv.active"]')).to_have_text("0")
    stopped = seen.answer()
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator(".stats")).to_contain_text("tokens/s")
    page.get_by_role("button", name="Stop").click()
    seen.expect_end("stopped")
    assert page.locator(".turn").count() == 2
    assert seen.answer() != stopped
    expect(page.get_by_label("Message", exact=True)).to_be_focused()


def test_who_reads_above_stays_there_while_the_answer_grows(visit: Callable[..., Visit]) -> None:
    seen = visit()
    log = seen.page.locator("#log")
    fill_page(seen.page)
    seen.ask("Go on for ever.")
    expect(seen.page.locator(".stats")).to_contain_text("tokens/s")
    is_at_end = "(log) => log.scrollHeight - log.scrollTop - log.clientHeight < 40"
    assert log.evaluate(is_at_end)
    log.evaluate("(log) => { log.scrollTop = 0; }")
    told = seen.page.locator(".stats").inner_text()
    expect(seen.page.locator(".stats")).not_to_have_text(told)
    assert log.evaluate("(log) => log.scrollTop") == 0
    seen.page.keyboard.press("Escape")
    seen.expect_end("stopped")


def fill_page(page: Page) -> None:
    """Makes the conversation longer than its window."""
    page.locator("#log").evaluate("(log) => { log.style.paddingTop = '2000px'; }")


def test_an_answer_that_looks_like_html_is_text_and_code_is_code(visit: Callable[..., Visit]) -> None:
    seen = visit()
    pieces = ["Look: ", MARKUP[:20], MARKUP[20:], "\n``", "`html\n<i>x</i>\n\n  y\n```", "\n\nDone"]
    events = [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in ["", *pieces]]
    events += [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}]
    body = "".join(f"data: {json.dumps(event)}\r\n\r\n" for event in events) + "data: [DONE]\n\n"

    def answer(route: Route) -> None:
        route.fulfill(status=200, content_type="text/event-stream", body=body)

    seen.page.route("**/v1/chat/completions", answer)
    seen.ask("Write HTML.")
    seen.expect_end("stop")
    shown = seen.page.locator(".answer .text > *")
    assert shown.all_text_contents() == [f"Look: {MARKUP}", "<i>x</i>\n\n  y", "Done"]
    assert shown.evaluate_all("(all) => all.map((element) => element.tagName)") == ["P", "PRE", "P"]
    assert seen.page.title() == "tokenloom"


def test_events_are_read_wherever_the_stream_is_cut(visit: Callable[..., Visit]) -> None:
    """Every way to cut a stream into three, and one byte at a time; characters and line ends included."""
    text = 'data: {"a": "ä€😀"}\r\n\r\n: note\ndata:b\ndata: c\n\nid: 1\rdata\r\rdata: last\n\n'
    raw = text.encode()
    cuts = [[i, j] for i, j in product(range(len(raw) + 1), repeat=2) if i <= j] + [list(range(len(raw)))]
    program = """async ([raw, cuts]) => {
        const { eventsOf } = await import("/page/sse.js");
        const found = new Set();
        for (const cut of cuts) {
            const ends = [...cut, raw.length];
            const parts = ends.map((end, index) => new Uint8Array(raw.slice(ends[index - 1] ?? 0, end)));
            const body = new ReadableStream({ start(to) { parts.forEach((part) => to.enqueue(part)); to.close(); } });
            const events = [];
            for await (const data of eventsOf({ body })) events.push(data);
            found.add(JSON.stringify(events));
        }
        return [...found];
    }"""
    found = visit().page.evaluate(program, [list(raw), cuts])
    assert [json.loads(events) for events in found] == [['{"a": "ä€😀"}', "b\nc", "", "last"]]


def test_a_server_with_keys_asks_for_one_and_forgets_it_with_the_tab(visit: Callable[..., Visit]) -> None:
    seen = visit(expected=(401,), keys=("alice:right",))
    page = seen.page
    expect(page.locator("#state-text")).to_have_text("API key needed")
    seen.ask("Hello", max_tokens=4)
    for key in ("wrong", "right"):
        expect(page.locator("#key-dialog")).to_be_visible()
        expect(page.locator("#key-refused")).to_be_visible(visible=key == "right")
        page.get_by_label("Key", exact=True).fill(key)
        page.keyboard.press("Enter")
    seen.expect_end("length")
    expect(page.locator("#key-dialog")).to_be_hidden()
    expect(page.locator("#state-text")).to_have_text("idle")
    assert page.locator(".question").count() == 1
    kept = "(() => [localStorage.length, document.cookie, Object.values({ ...sessionStorage })])"
    assert page.evaluate(kept) == [0, "", ["right"]]


def test_a_dead_engine_is_told_and_the_page_recovers(visit: Callable[..., Visit], engine: LocalEngine) -> None:
    seen = visit(expected=(503,))
    page, app = seen.page, seen.app
    seen.ask("Go on for ever.")
    expect(page.locator(".stats")).to_contain_text("tokens/s")

    async def lose() -> None:
        app.client.detach("the engine was killed by SIGKILL")

    app.run(lose())
    seen.expect_end("error")
    expect(page.locator(".answer .problem")).to_contain_text("killed by SIGKILL")
    expect(page.locator("#state-text")).to_have_text("engine unavailable")
    expect(page.locator("#problem")).to_contain_text("the engine is not ready")
    assert seen.answer()

    async def find() -> None:
        app.service.client = app.client = engine.connect()

    app.run(find())
    expect(page.locator("#state-text")).to_have_text("idle")
    expect(page.locator("#problem")).to_be_hidden()
    page.get_by_label("Max tokens").evaluate("(input) => { input.value = '4'; }")
    page.get_by_role("button", name="Try again").click()
    seen.expect_end("length")


@pytest.mark.parametrize("status", [429, 503])
def test_a_full_server_is_told_with_when_to_try_again(visit: Callable[..., Visit], status: int) -> None:
    seen = visit(expected=(status,))
    page = seen.page
    page.clock.install()

    def refuse(route: Route) -> None:
        error = {"error": {"message": "the server is full; try again later", "type": "x", "param": None, "code": "x"}}
        route.fulfill(
            status=status, headers={"Retry-After": "3"}, content_type="application/json", body=json.dumps(error)
        )

    page.route("**/v1/chat/completions", refuse, times=1)
    seen.ask("Hello", max_tokens=4)
    expect(page.get_by_role("alert")).to_contain_text(f"{status}: the server is full; try again later")
    button = page.locator(".answer button")
    expect(button).to_have_text("Try again in 3 s")
    expect(button).to_be_disabled()
    page.clock.run_for(3_100)
    button.click()
    seen.expect_end("length")


def test_a_mistake_in_a_field_is_told_before_or_by_the_server(visit: Callable[..., Visit]) -> None:
    seen = visit(expected=(400,))
    page = seen.page
    seen.ask("Hello", max_tokens=0)
    assert page.locator(".turn").count() == 0
    expect(page.get_by_label("Max tokens")).to_be_focused()
    page.get_by_label("Top k").fill("9999999999")
    seen.ask("Hello", max_tokens=3)
    expect(page.get_by_role("alert")).to_contain_text("400: top_k")


def test_a_hidden_page_asks_nothing(visit: Callable[..., Visit]) -> None:
    seen = visit()
    page = seen.page
    expect(page.locator("#state-text")).to_have_text("idle")
    page.clock.install()
    show = """(isHidden) => {
        Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(show, True)
    seen.addresses.append(f"{seen.app.url}/")
    before = list(seen.addresses)
    page.clock.run_for(30_000)
    assert seen.addresses == before
    with page.expect_request("**/debug/live"):
        page.evaluate(show, False)


@pytest.mark.parametrize("width", [320, 640])
def test_narrow_pages_show_one_part_and_never_scroll_sideways(visit: Callable[..., Visit], width: int) -> None:
    page = visit(width=width).page
    is_fitting = "() => document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    page.get_by_text("Sampling", exact=True).click()
    assert page.evaluate(is_fitting)
    page.get_by_role("button", name="Engine").click()
    expect(page.locator("#chat")).to_be_hidden()
    expect(page.locator('[data-live="num_steps"]')).to_contain_text("in all")
    assert page.evaluate(is_fitting)
    assert page.locator("#engine").evaluate("(box) => box.scrollWidth <= box.clientWidth")


def test_the_tab_key_goes_from_the_message_to_the_buttons(visit: Callable[..., Visit]) -> None:
    seen = visit()
    expect(seen.page.get_by_label("Message", exact=True)).to_be_focused()
    visited = []
    for _ in range(3):
        seen.page.keyboard.press("Tab")
        visited.append(seen.page.evaluate("() => document.activeElement.textContent.trim()"))
    assert visited[0] == "Send"
    assert visited[1].startswith("Sampling")
