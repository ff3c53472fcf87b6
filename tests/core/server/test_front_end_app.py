"""What a front end's process tells of its start: that it can answer, or why it never will."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.core.engine_process.served_stub import INFO, FakeFrontEndLink
from tokenloom.engine_process.linked_client import LinkedClient
from tokenloom.engine_process.tokenizer_file import write_tokenizer
from tokenloom.errors import ConfigError
from tokenloom.server import front_end
from tokenloom.server.front_end_app import front_end_app
from tokenloom.server.front_end_place import FrontEndPlace
from tokenloom.server.reports import ChildFailed, Serving
from tokenloom.server.settings import ServerSettings
from tokenloom.text.tokenizer import Tokenizer

TIMEOUT_S = 30.0


def told_by(prepare: Callable[[LinkedClient, list[Any]], None]) -> list[Any]:
    """What a front end tells; `prepare` brings an engine to its client, and may look at what was told before."""

    async def main() -> list[Any]:
        told: list[Any] = []
        has_told = asyncio.Event()

        def tell(failure: Exception | None) -> None:
            told.append(failure)
            has_told.set()

        client = LinkedClient()
        app = front_end_app(client, ServerSettings(), FrontEndPlace(0, 1, [0]), tell)
        async with app.router.lifespan_context(app):
            prepare(client, told)
            await asyncio.wait_for(has_told.wait(), TIMEOUT_S)
        await client.close()
        return told

    return asyncio.run(main())


def engine_with(client: LinkedClient, tokenizer_file: Path) -> None:
    link = FakeFrontEndLink()
    client.attach(link)
    link.take(msgspec.structs.replace(INFO, tokenizer_file=str(tokenizer_file)))


def test_a_front_end_tells_that_it_serves_once_its_tokenizer_is_loaded(
    byte_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    file = tmp_path / "engine.tokenizer"
    write_tokenizer(file, byte_tokenizer)

    def prepare(client: LinkedClient, told: list[Any]) -> None:
        assert told == []
        engine_with(client, file)

    assert told_by(prepare) == [None]


@pytest.mark.parametrize("content", [None, b"no pickle"])
def test_a_tokenizer_that_cannot_be_loaded_ends_the_start(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "engine.tokenizer"
    if content is not None:
        file.write_bytes(content)
    (failure,) = told_by(lambda client, told: engine_with(client, file))
    assert isinstance(failure, Exception)


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (None, Serving()),
        (ConfigError("server.tool_parser=x: no"), ChildFailed("server.tool_parser=x: no", True)),
        (FileNotFoundError("gone"), ChildFailed("FileNotFoundError: gone", False)),
    ],
)
def test_the_supervisor_hears_of_the_start_and_a_failed_one_ends_the_process(
    failure: Exception | None, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(front_end, "end_child", ended.append)
    ours, theirs = Pipe()
    front_end.tell_start(theirs, failure)
    assert ours.recv() == expected
    assert ended == ([] if failure is None else [1])
