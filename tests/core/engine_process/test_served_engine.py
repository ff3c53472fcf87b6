"""What serving makes of a loaded model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiny_model import write_tiny_llama
from tokenloom import LLM
from tokenloom.compose import compose_config
from tokenloom.engine_process.local_client import LocalEngine
from tokenloom.engine_process.messages import Submit
from tokenloom.engine_process.served_engine import ServedEngine, served_engine
from tokenloom.engine_process.tokenizer_file import read_tokenizer
from tokenloom.errors import RequestError
from tokenloom.grammar_spec import GrammarSpec
from tokenloom.request_factory import RequestTraits
from tokenloom.sampling_params import SamplingParams
from tokenloom.server.settings import ServeSettings


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = tmp_path_factory.mktemp("model")
    write_tiny_llama(folder, with_tokenizer=True, extra_config={"eos_token_id": 0})
    overrides = [
        f"model={folder}",
        "cache.num_blocks=100",
        "scheduler.max_queued_requests=9",
        "server.api_keys=[abcdef]",
    ]
    with LLM(config=compose_config(overrides, command=ServeSettings)) as llm:
        yield llm


@pytest.fixture(scope="module")
def served(llm: LLM, tmp_path_factory: pytest.TempPathFactory) -> ServedEngine:
    return served_engine(llm, tokenizer_file=tmp_path_factory.mktemp("files") / "own.tokenizer")


def test_front_ends_are_told_limits_plugins_and_the_engines_part_of_the_configuration(served: ServedEngine) -> None:
    info = served.info
    assert (info.max_model_len, info.block_size) == (512, 16)
    assert (info.max_num_seqs, info.max_queued_requests) == (64, 9)
    assert info.plugins["scheduler"] == "fcfs"
    assert info.config["cache"]["num_blocks"] == 100
    assert "abcdef" not in json.dumps(info.config)
    assert "server" not in info.config


def test_the_tokenizer_is_left_for_front_ends(llm: LLM, served: ServedEngine) -> None:
    assert served.info.tokenizer_file is not None
    read = read_tokenizer(Path(served.info.tokenizer_file))
    assert read.encode("some text") == llm.tokenizer.encode("some text")
    assert read.chat_template == llm.tokenizer.chat_template


def test_a_grammar_holds_for_every_choice_and_a_wrong_one_is_refused(served: ServedEngine) -> None:
    params = SamplingParams(max_tokens=12, n=2, seed=3)

    async def texts(engine: LocalEngine, regex: str) -> list[str]:
        client, tokens = engine.connect(), dict[str, list[int]]()
        submit = Submit(f"r-{regex}", [97], params, RequestTraits(), GrammarSpec("regex", regex))
        try:
            async for outputs in client.submit(submit):
                for output in outputs:
                    tokens.setdefault(output.request_id, []).extend(output.token_ids)
        finally:
            await client.close()
        return [bytes(ids).decode().rstrip("\0") for ids in tokens.values()]

    with LocalEngine(served) as engine:
        found = asyncio.run(texts(engine, "[ab]{3}c"))
        assert len(found) == 2
        assert all(len(text) == 4 and set(text[:3]) <= {"a", "b"} and text[3] == "c" for text in found), found
        with pytest.raises(RequestError) as raised:
            asyncio.run(texts(engine, "("))
    assert raised.value.param == "response_format"


def test_a_grammar_that_would_take_minutes_to_compile_is_refused_and_the_next_one_is_not(llm: LLM) -> None:
    grammars = served_engine(llm).grammars
    patterns = " & ".join(f"/(.|\\n)*a{index}(.|\\n)*/" for index in range(40))
    try:
        refused, taken = (
            grammars.start(GrammarSpec.lark(f"start: T\nT: {patterns}")),
            grammars.start(GrammarSpec.regex("b")),
        )
        assert "costs too much" in str(refused.exception())
        assert taken.exception() is None
    finally:
        grammars.close()
