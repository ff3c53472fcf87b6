"""The default model, for real: its greedy tokens are Transformers', and it knows the capital of France."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.e2e.plain_model import PlainModel
from tokenloom import LLM, SamplingParams
from tokenloom.loader.sources import resolve_model
from tokenloom.ops.native import why_not_buildable

pytestmark = pytest.mark.slow

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "The three primary colours are",
    "Water boils at",
    "import numpy as np\n\ndef softmax(x):",
    "Dear Sir or Madam,",
    "The mitochondria is",
    "Q: What is 7 times 8?\nA:",
    "Roses are red,",
    "In 1969, the first",
    "To make a cup of tea, first",
    "The quick brown fox",
    "SELECT name FROM users WHERE",
    "Photosynthesis converts",
    "My favourite book is",
    "A list of fruits: apple, banana,",
    "The meaning of life is",
    "<html>\n<head>\n<title>",
    "The opposite of hot is",
]


@pytest.fixture(scope="module")
def oracle() -> PlainModel:
    """Transformers' own reading of the same file, in fp32."""
    from transformers import AutoModelForCausalLM, GgufConfig

    path = resolve_model("default")
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    return PlainModel(model.eval())


@pytest.fixture(scope="module", params=["torch_sdpa", "native_cpu"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    with LLM(dtype="float32", num_blocks=600, attention=request.param, show_progress=False) as llm:
        yield llm


def test_greedy_tokens_equal_transformers(llm: LLM, oracle: PlainModel) -> None:
    prompts = [llm.tokenizer.encode(prompt) for prompt in PROMPTS]
    outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True))
    for prompt, output in zip(prompts, outputs, strict=True):
        assert len(output.outputs[0].token_ids) == 64
        oracle.assert_greedy(prompt, output.outputs[0].token_ids)


@pytest.mark.skipif(why_not_buildable() is not None, reason=str(why_not_buildable()))
def test_blocks_of_the_file_say_what_their_numbers_say(oracle: PlainModel) -> None:
    with LLM(dtype="float32", num_blocks=100, quant="gguf", show_progress=False) as llm:
        prompts = [llm.tokenizer.encode(prompt) for prompt in PROMPTS[:3]]
        outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True))
        assert llm.engine.facts.memory["weights"] < 100e6  # of 135 million weights
    for prompt, output in zip(prompts, outputs, strict=True):
        oracle.assert_greedy(prompt, output.outputs[0].token_ids)


def test_chat_says_paris() -> None:
    with LLM(num_blocks=100, show_progress=False) as llm:
        output = llm.chat(
            [{"role": "user", "content": "What is the capital of France?"}], SamplingParams(temperature=0)
        )
    assert "Paris" in output[0].outputs[0].text
    assert output[0].outputs[0].finish_reason == "stop"


def test_speculation_changes_nothing_and_is_used(llm: LLM) -> None:
    prompt = "The cat sat on the mat. The dog sat on the mat. The cow sat on the mat. The"
    params = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
    plain = llm.generate(prompt, params)[0].outputs[0].token_ids
    attention = llm.config.engine.attention.name
    with LLM(
        dtype="float32", num_blocks=100, attention=attention, spec_decode="ngram", show_progress=False
    ) as drafting:
        assert drafting.generate(prompt, params)[0].outputs[0].token_ids == plain
        assert drafting.engine.stats.num_accepted_tokens > 20
