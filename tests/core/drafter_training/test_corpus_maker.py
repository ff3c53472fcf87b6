"""What the target says to itself: repeatable, in its template, with the states that it had."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.core.drafter_training.tiny_corpus import CPU, ENGINE, TALK, make
from tokenloom.compose import compose_config
from tokenloom.drafter_training.conversations import ConversationMaker
from tokenloom.drafter_training.corpus import Corpus, read_conversations, states_path
from tokenloom.drafter_training.target import Target, aux_layers
from tokenloom.errors import ConfigError, ModelError
from tokenloom.llm import LLM
from tokenloom.models.causal_lm import FINAL_STATE
from tokenloom.sampling_params import SamplingParams


def test_a_batch_of_conversations_is_the_same_whatever_was_made_before(model: Path, corpus_folder: Path) -> None:
    with LLM(config=compose_config([f"model={model}", *ENGINE])) as llm:
        again = ConversationMaker(llm, TALK).make(1, 4)
        kept = read_conversations(corpus_folder / "conversations-0001.safetensors")
        assert again == kept
        greedy = ConversationMaker(llm, replace(TALK, greedy_share=1.0)).make(0, 4)
        prompts = [list(each.token_ids[: each.num_prompt_tokens]) for each in greedy]
        outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=TALK.answer_tokens))
        texts = [llm.tokenizer.decode(prompt) for prompt in prompts]
    assert [tuple(o.outputs[0].token_ids) for o in outputs] == [e.token_ids[e.num_prompt_tokens :] for e in greedy]
    assert all(text.startswith("[user]") and text.endswith("\n[assistant]") for text in texts)
    assert len(set(texts)) == len(texts)


def test_conversations_leave_room_for_the_token_that_their_states_cost(model: Path) -> None:
    with LLM(config=compose_config([f"model={model}", *ENGINE, "model.max_model_len=150"])) as llm:
        made = ConversationMaker(llm, replace(TALK, answer_tokens=140)).make(0, 8)
    lengths = [len(each.token_ids) for each in made]
    assert max(lengths) == 149
    assert all(each.num_prompt_tokens < 149 for each in made)


def test_states_are_those_of_the_target(target: Target, corpus: Corpus) -> None:
    """The head makes its greedy tokens of the final ones, and all others are there for every token."""
    indices = [*corpus.training, *corpus.held_out]
    layers = (*aux_layers(6), FINAL_STATE)
    num_right = num_all = 0
    for index in indices:
        sequence = corpus.load(index, layers, CPU)
        count = len(sequence.token_ids)
        assert {tuple(states.shape) for states in sequence.states.values()} == {(count, 32)}
        said = (sequence.states[FINAL_STATE] @ target.head.T).argmax(dim=-1)
        own = slice(sequence.num_prompt_tokens - 1, count - 1)
        num_right += int((said[own] == sequence.token_ids[1:][own]).sum())
        num_all += count - sequence.num_prompt_tokens
    # Some answers are sampled.
    assert num_right > 0.5 * num_all


def test_a_corpus_grows_and_keeps_what_is_there(model: Path, target: Target, tmp_path: Path) -> None:
    make(model, tmp_path, 3)
    first = states_path(tmp_path, 0).read_bytes()
    states_path(tmp_path, 0).touch()
    modified = states_path(tmp_path, 0).stat().st_mtime_ns
    make(model, tmp_path, 5)
    assert states_path(tmp_path, 0).stat().st_mtime_ns == modified
    assert states_path(tmp_path, 0).read_bytes() == first
    assert states_path(tmp_path, 1).exists()
    with pytest.raises(ConfigError, match="another recipe"):
        make(model, tmp_path, 5, replace(TALK, seed=4))


def test_a_folder_without_states_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no states of conversations"):
        Corpus(tmp_path, max_tokens=10)


def test_conversations_without_an_answer_are_refused(corpus_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"max_tokens=1: too few to train on.*raise max_tokens="):
        Corpus(corpus_folder, max_tokens=1)


def test_held_out_conversations_are_not_trained_on(corpus: Corpus) -> None:
    assert corpus.held_out
    assert not set(corpus.held_out) & set(corpus.training)


def test_targets_with_few_layers_are_refused() -> None:
    assert aux_layers(30) == (1, 14, 26)
    with pytest.raises(ModelError, match="this one has 4 layers"):
        aux_layers(4)


def test_long_conversations_are_cut(corpus_folder: Path) -> None:
    whole = Corpus(corpus_folder, max_tokens=400, held_out_every=4)
    index = whole.training[0]
    length = whole.num_tokens(index)
    cut = Corpus(corpus_folder, max_tokens=length - 3, held_out_every=4)
    assert cut.num_tokens(index) == length - 3
    assert torch.equal(
        cut.load(index, (FINAL_STATE,), CPU).token_ids, whole.load(index, (FINAL_STATE,), CPU).token_ids[: length - 3]
    )
