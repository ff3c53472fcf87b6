"""docs/serving.md: its tables are the code's, its commands compose, and its examples run; so do those of examples/."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.core.server.served_app import ServedApp
from tests.tiny_model import write_tiny_llama
from tokenloom import LLM
from tokenloom.compose import compose_config
from tokenloom.engine_process.local_client import LocalEngine
from tokenloom.server import chat_body, completion_body, completion_exchange, generation_body
from tokenloom.server.chat_body import ChatBody
from tokenloom.server.completion_body import CompletionBody
from tokenloom.server.field_policy import HARMLESS
from tokenloom.server.openapi_bodies import ERRORS
from tokenloom.server.settings import ServerSettings, ServeSettings

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
SERVER = ROOT / "core" / "tokenloom" / "server"


def chapter(title: str) -> str:
    return DOCUMENT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)


def words(text: str) -> set[str]:
    """What stands in backticks, without values and commas."""
    return {word for span in re.findall(r"`([^`]+)`", text) for word in re.findall(r"[\w.]+", span)}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApp]:
    folder = write_tiny_llama(tmp_path_factory.mktemp("model"), with_tokenizer=True)
    llm = LLM(str(folder), ("cache.num_blocks=100", "engine.num_threads=1"), show_progress=False)
    with LocalEngine(llm) as engine, ServedApp(engine, served_model_names=("default",)) as served:
        yield served
    llm.close()


def test_every_endpoint_is_listed(app: ServedApp) -> None:
    listed = set(re.findall(r"`(GET|POST) (/[^`]*)`", chapter("Endpoints")))
    known = {(m.upper(), path) for path, found in app.get("/openapi.json").json["paths"].items() for m in found}
    assert listed == known | {
        ("GET", path) for path in ("/", "/docs", "/openapi.json", "/debug/live", "/debug/profile")
    }


def test_every_field_is_named() -> None:
    named = words(chapter("What a request may hold"))
    fields = {*CompletionBody.model_fields, *ChatBody.model_fields}
    assert fields - named == set()
    assert HARMLESS - named == set()
    table = re.findall(r"^\| (`.*?) \| ", chapter("What a request may hold"), re.MULTILINE)
    assert words("".join(table)) - fields == set()


def test_every_error_is_listed() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in SERVER.rglob("*.py"))
    codes = set(re.findall(r'code="(\w+)"', sources)) | {"context_length_exceeded"}
    rows = [line.split(" | ") for line in chapter("Errors").splitlines() if re.match(r"\| [45]\d\d \|", line)]
    listed = {word for row in rows for word in words(row[1])}
    assert listed == codes
    assert {int(row[0].strip("| ")) for row in rows} == {*ERRORS, 405, 409, 431}


def test_limits_are_those_of_the_code() -> None:
    (line,) = re.findall(r"- \*\*Limits\.\*\*(.*?)\n\n", DOCUMENT, re.DOTALL)
    numbers = [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\d|\d", line)]
    assert numbers == [
        128,
        completion_exchange.MAX_CHOICES,
        completion_body.MAX_PROMPTS,
        20,
        generation_body.MAX_STOPS,
        generation_body.MAX_STOP_CHARS,
        generation_body.MAX_STOP_TOKEN_IDS,
        generation_body.MAX_BIASES,
        generation_body.MAX_ALLOWED_TOKEN_IDS,
        chat_body.MAX_MESSAGES,
        generation_body.MAX_PROCESSORS,
        64,
        ServerSettings().max_body_bytes >> 20,
    ]
    assert generation_body.MAX_BAD_WORDS == chat_body.MAX_TOOLS == generation_body.MAX_STOP_TOKEN_IDS


def flat(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        yield f"{prefix}{name}"
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")


def test_every_key_exists() -> None:
    keys = set(flat(compose_config(["spec_decode=ngram"]).to_dict()))
    known = keys | {f"server.{name}" for name in ServerSettings.model_fields}
    groups = r"server|model|engine|cache|scheduler|spec_decode|quant"
    named = set(re.findall(rf"`((?:{groups})(?:\.\w+)+)", DOCUMENT))
    assert len(named) > 30
    assert named - known == set()


def test_every_choice_of_the_table_composes() -> None:
    choices = re.findall(r"`((?:cache|scheduler|spec_decode)=\w+)`", DOCUMENT)
    assert len(choices) >= 6
    for choice in choices:
        compose_config([choice])


def test_commands_compose() -> None:
    shown = [*blocks("bash"), *re.findall(r"```bash\n(.*?)```", README, re.DOTALL)]
    commands = [line for block in shown for line in block.splitlines() if line.startswith("tokenloom serve")]
    assert len(commands) == 3
    for command in commands:
        compose_config(shlex.split(command)[2:], command=ServeSettings)


def test_curl_examples_are_answered(app: ServedApp) -> None:
    texts = (DOCUMENT + README).replace("\\\n", " ")
    commands = re.findall(r"^curl .*$", texts, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        arguments = shlex.split(command)
        url = next(argument for argument in arguments if argument.startswith("http://localhost:8000/"))
        answer = app.post(url.removeprefix("http://localhost:8000"), json.loads(arguments[arguments.index("-d") + 1]))
        assert answer.status == 200


def test_python_example_runs(app: ServedApp, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("python")
    names: dict[str, Any] = {}
    exec(code.replace("http://localhost:8000", app.url), names)
    names["client"].close()
    assert capsys.readouterr().out


@pytest.mark.slow
def test_example_files_run_with_the_default_model(capsys: pytest.CaptureFixture[str]) -> None:
    folder = ROOT / "examples" / "serving"
    with (
        LLM(overrides=["engine.num_threads=2", "cache.num_blocks=64"], show_progress=False) as llm,
        LocalEngine(llm) as engine,
        ServedApp(engine) as served,
    ):
        done = subprocess.run([folder / "chat.sh", served.url], check=False, capture_output=True, text=True)
        runpy.run_path(str(folder / "chat.py"))["main"](served.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert " Paris" in done.stdout
    assert '"token_logprobs":[null,-' in done.stdout
    assert re.search(r'"text":"\d{4}-\d\d-\d\d"', done.stdout)
    shown = capsys.readouterr().out
    assert "# 24 tokens" in shown
    assert re.search(r"name='(red|yellow|blue)' is_warm=(True|False)", shown)
