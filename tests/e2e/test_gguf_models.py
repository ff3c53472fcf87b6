"""A GGUF model that is no Llama, from file to text: weights, tokenizer, chat template and end tokens come from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.core.loader.gguf_conversion import Conversion, write_gguf
from tests.core.loader.hf_families import write_hf_family
from tests.e2e.conftest import TINY_OVERRIDES
from tests.tiny_model import write_byte_tokenizer
from tokenloom import LLM, SamplingParams
from tokenloom.compose import compose_config
from tokenloom.plugins import Registry

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
TEMPLATE = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}"
PROMPTS = [list(b"the first prompt"), list(b"another, which is longer than the window of the model")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Windows in most layers, a rope of their own, norms with an offset, a tied head."""
    changes = {"vocab_size": 258, "sliding_window": 16, "eos_token_id": 257}
    folder = write_hf_family(tmp_path_factory.mktemp("gemma3"), "gemma3_text", changes)
    write_byte_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def gguf_path(folder: Path) -> Path:
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [*sorted(vocabulary, key=vocabulary.__getitem__), "qj", "<end>"],
        "tokenizer.ggml.token_type": [1] * 257 + [3],
        "tokenizer.ggml.merges": ["q j"],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }
    return write_gguf(folder, folder / "model.gguf", Conversion(metadata=metadata, num_parts=2))


@pytest.fixture
def llm(gguf_path: Path, test_registry: Registry) -> Iterator[LLM]:
    with LLM(
        config=compose_config([f"model={gguf_path}", *TINY_OVERRIDES], registry=test_registry),
        registry=test_registry,
        show_progress=False,
    ) as llm:
        yield llm


def test_tokens_equal_those_of_the_folder(llm: LLM, folder: Path, test_registry: Registry) -> None:
    config = compose_config([f"model={folder}", *TINY_OVERRIDES], registry=test_registry)
    with LLM(config=config, registry=test_registry, show_progress=False) as reference:
        expected = [output.outputs[0].token_ids for output in reference.generate(PROMPTS, GREEDY)]
    actual = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY)]
    assert actual == expected
    assert len({tuple(token_ids) for token_ids in actual}) == 2


def test_text_goes_through_the_files_own_tokenizer(llm: LLM) -> None:
    (output,) = llm.generate("aqjb", GREEDY)
    assert output.prompt_token_ids == [ord("a"), 256, ord("b")]
    assert output.outputs[0].text == llm.tokenizer.decode(output.outputs[0].token_ids)


def test_chat_uses_the_files_own_template(llm: LLM) -> None:
    (output,) = llm.chat([{"role": "user", "content": "hi"}], GREEDY)
    assert output.prompt_token_ids == list(b"<user>hi")
