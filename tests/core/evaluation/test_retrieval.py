"""Retrieval: prompts of the wanted length that hide a number at the wanted depth."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.tiny_model import write_tiny_llama
from tokenloom.errors import ConfigError
from tokenloom.evaluation.intervals import Bootstrap
from tokenloom.evaluation.retrieval import (
    Needle,
    RetrievalPlan,
    find_needles,
    has_number,
    retrieval_figures,
    write_needles,
)
from tokenloom.llm import LLM

PLAN = RetrievalPlan(lengths=(300, 480), depths=(0.0, 0.5, 1.0), trials=2, seed=5)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    model = write_tiny_llama(tmp_path_factory.mktemp("model"), with_tokenizer=True)
    with LLM(str(model), ["cache.num_blocks=64", "engine.num_threads=1"], dtype="float32") as found:
        yield found


def test_prompts_have_the_wanted_length_and_depth(llm: LLM) -> None:
    needles = write_needles(llm.tokenizer, PLAN)
    assert len(needles) == 12
    for needle in needles:
        text = bytes(needle.token_ids).decode()
        assert needle.length - 80 < len(needle.token_ids) <= needle.length  # a sentence less at most
        assert text.count(needle.key) == 2
        assert text.endswith("The pass key is")
        share = text.index(f"The pass key is {needle.key}") / len(text)
        assert abs(share - (0.2 + 0.4 * needle.depth)) < 0.35


def test_prompts_depend_on_the_seed_alone(llm: LLM) -> None:
    needles = write_needles(llm.tokenizer, PLAN)
    assert needles == write_needles(llm.tokenizer, PLAN)
    other = RetrievalPlan(PLAN.lengths, PLAN.depths, PLAN.trials, seed=6)
    assert [n.key for n in needles] != [n.key for n in write_needles(llm.tokenizer, other)]
    assert len({n.key for n in needles}) == len(needles)


def test_every_prompt_is_asked(llm: LLM) -> None:
    needles = write_needles(llm.tokenizer, RetrievalPlan((300,), (0.5,), 3, 0))
    told: list[tuple[int, int]] = []
    found = find_needles(llm, needles, lambda *news: told.append(news))
    assert (len(found), told) == (3, [(1, 3), (2, 3), (3, 3)])


def test_an_answer_counts_where_the_model_gives_it(llm: LLM) -> None:
    (output,) = llm.generate([1, 2, 3])
    text = output.outputs[0].text
    assert not any(has_number(text, key) for key in ("12345", "99999"))
    ids = write_needles(llm.tokenizer, RetrievalPlan((300,), (0.5,), 1, 0))[0].token_ids
    from tokenloom.sampling_params import SamplingParams

    answer = llm.generate(ids, SamplingParams(temperature=0.0, max_tokens=16))[0].outputs[0].text
    word = next(iter("".join(c if c.isalnum() else " " for c in answer).split()), None)
    assert word is not None
    assert find_needles(llm, [Needle(300, 0.5, ids, word)], lambda *_: None) == [True]


@pytest.mark.parametrize(
    ("text", "is_there"),
    [(" 12345.", True), ("the number 12345", True), ("123456", False), ("012345", False), ("1234 5", False)],
)
def test_a_number_is_found_as_a_whole(text: str, is_there: bool) -> None:
    assert has_number(text, "12345") is is_there


def test_figures_by_length_and_depth() -> None:
    places = [(8, 0.0), (8, 0.0), (8, 1.0), (16, 0.0)]
    needles = [Needle(length, depth, [1], "1") for length, depth in places]
    figures = retrieval_figures(needles, [True, False, True, False], Bootstrap())
    assert (figures["accuracy"], figures["num_prompts"]) == (0.5, 4)
    assert figures["by_length"]["8"]["accuracy"] == pytest.approx(2 / 3)
    assert figures["by_length"]["8"]["by_depth"] == {"0": 0.5, "1": 1.0}
    assert figures["by_length"]["16"]["accuracy_interval"] is None


def test_lengths_without_room_are_refused(llm: LLM) -> None:
    with pytest.raises(ConfigError, match=r"lengths=\[40\]: .* take 1\d\d tokens"):
        write_needles(llm.tokenizer, RetrievalPlan((40,), (0.5,), 1, 0))
    needles = write_needles(llm.tokenizer, RetrievalPlan((510,), (0.5,), 1, 0))
    with pytest.raises(ConfigError, match="but the context holds 511"):
        find_needles(llm, needles, lambda *_: None)
