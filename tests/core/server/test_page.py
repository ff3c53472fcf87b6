"""The page at /: its files as they are served, and the data that it shows."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest

from tests.core.server.served_app import ServedApp

FOLDER = Path(str(files("tokenloom.server") / "page"))
NAMES = sorted(path.name for path in FOLDER.iterdir())
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
MAX_BYTES = 60_000


def path_of(name: str) -> str:
    return "/" if name == "index.html" else f"/page/{name}"


def text_of(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_files_come_with_their_type_and_nothing_may_be_inline(api: ServedApp, name: str) -> None:
    answer = api.get(path_of(name))
    assert (answer.status, answer.body) == (200, (FOLDER / name).read_bytes())
    assert answer.headers["content-type"].split(";")[0] == TYPES[Path(name).suffix]
    assert answer.headers["x-content-type-options"] == "nosniff"
    policy = dict(rule.split(" ", 1) for rule in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in answer.headers["content-security-policy"]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_has_not_changed_is_not_sent_again(api: ServedApp, name: str) -> None:
    first = api.get(path_of(name))
    assert first.headers["cache-control"] == "no-cache"
    again = api.get(path_of(name), headers={"If-None-Match": f'"other", W/{first.headers["etag"]}'})
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert api.get(path_of(name), headers={"If-None-Match": '"other"'}).status == 200
    assert api.ask("HEAD", path_of(name)).status == 200


@pytest.mark.parametrize("name", NAMES)
def test_files_name_no_other_address(name: str) -> None:
    text = text_of(name).replace("http://www.w3.org/2000/svg", "")
    assert re.findall(r"https?:|[\"'(]//|@import|\bdata:[a-z]+/", text) == []


def test_the_page_has_no_code_of_its_own_and_is_small() -> None:
    html = text_of("index.html")
    assert re.findall(r"<style|\sstyle=|\son\w+=|javascript:|<script(?![^>]*\ssrc=)", html) == []
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", "".join(map(text_of, NAMES))
    )
    assert sum(len(text_of(name)) for name in NAMES) < MAX_BYTES


def test_what_files_refer_to_is_there() -> None:
    html = text_of("index.html")
    referred = {name.removeprefix("page/") for name in re.findall(r'(?:src|href)="([^#"]+)"', html)}
    scripts = {name: text_of(name) for name in NAMES if name.endswith(".js")}
    for script in scripts.values():
        referred |= set(re.findall(r'from "\./([^"]+)"', script))
    assert referred == {name for name in NAMES if name != "index.html"}
    ids = {found for script in scripts.values() for found in re.findall(r'\$\("([^"]+)"\)', script)}
    assert ids - set(re.findall(r'\sid="([^"]+)"', html)) == set()
    # Each number of the engine that the page has a place for is filled in, and no other.
    keys = set(re.findall(r'data-live="([^"]+)"', html))
    named = set(re.findall(r'^\s+"?([\w.]+)"?: ', scripts["live.js"], re.MULTILINE)) | {"about"}
    latencies = {f"{name}.{part}" for name in ("ttft_s", "tpot_s", "queue_s") for part in ("p50", "p99", "count")}
    assert keys - latencies <= named
    assert latencies <= keys


@pytest.mark.parametrize("name", ["nothing.js", "..%2fapp.py", "%2e%2e/app.py", "__init__.py", "index.html/"])
def test_nothing_else_is_served(api: ServedApp, name: str) -> None:
    assert api.get(f"/page/{name}").status in (307, 404)
    assert api.post("/", {}).status == 405


def test_the_page_is_no_part_of_the_api(api: ServedApp) -> None:
    paths = api.get("/openapi.json").json["paths"]
    assert not {"/", "/page/{name}", "/debug/live"} & set(paths)


def test_live_data_follow_the_engine(api: ServedApp) -> None:
    before = api.get("/debug/live")
    assert (before.status, before.headers["cache-control"]) == (200, "no-store")
    api.complete(prompt="x" * 40, max_tokens=5)

    def has_moved() -> bool:
        return bool(api.get("/debug/live").json["engine"]["num_steps"] >= before.json["engine"]["num_steps"] + 5)

    # What was told a moment ago may be told again.
    assert any(has_moved() for _ in range(10_000))
    told = api.get("/debug/live").json
    assert (told["model"], told["max_model_len"], told["max_num_seqs"]) == ("tiny", 256, 8)
    assert (told["is_draining"], told["num_engine_restarts"]) == (False, 0)
    assert told["plugins"]["scheduler"] == "fcfs"
    assert [step[1:4] for step in told["engine"]["steps"][-4:]] == 4 * [[0, 1, 0]]
    assert sum(map(len, told["engine"]["kv"]["maps"])) == 300


def test_with_keys_the_files_are_free_and_the_data_are_not(serve: Callable[..., ServedApp]) -> None:
    app = serve(api_keys=("alice:secret",))
    assert [app.get(path_of(name)).status for name in NAMES] == [200] * len(NAMES)
    for path in ("/debug/live", "/page", "/pages/app.js"):
        assert app.get(path).status == 401
    assert app.get("/debug/live", headers={"Authorization": "Bearer secret"}).status == 200


def test_without_an_engine_the_page_is_there_and_the_data_say_why_not(serve: Callable[..., ServedApp]) -> None:
    app = serve()

    async def lose() -> None:
        app.client.detach("the engine was killed by SIGKILL")

    app.run(lose())
    assert app.get("/").status == 200
    answer = app.get("/debug/live")
    assert (answer.status, answer.error["code"]) == (503, "engine_unavailable")
