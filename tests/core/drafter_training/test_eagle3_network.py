"""An EAGLE-3 head in training drafts as the head in plain PyTorch that drafts one token after the other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.core.drafter_training.tiny_corpus import CPU, vocabulary_of
from tests.plugins.spec_decode.tiny_eagle3 import TinyEagle3
from tokenloom.drafter_training.corpus import Corpus
from tokenloom.drafter_training.eagle3_network import Eagle3Network
from tokenloom.drafter_training.target import Target
from tokenloom.drafter_training.trainable_head import places_of


@pytest.fixture
def network(target: Target) -> Eagle3Network:
    """With weights that nothing has in common with the target's."""
    torch.manual_seed(1)
    head = Eagle3Network(target, vocabulary_of(target), 3)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.4 * torch.randn(parameter.shape) / parameter.shape[-1] ** 0.5)
    return head


def plain_head(network: Eagle3Network) -> TinyEagle3:
    """The same weights, run token by token."""
    tensors = network.tensors()
    head = TinyEagle3(vocab_size=256)
    head.draft_ids = torch.arange(len(tensors["d2t"])) + tensors["d2t"]
    head.layer = {name: tensors[f"layers.0.{name}"] for name in head.layer}
    head.outer = {name: tensors[name] for name in head.outer}
    return head


def test_each_step_drafts_what_plain_pytorch_says(network: Eagle3Network, target: Target, corpus: Corpus) -> None:
    """Over two conversations at once, at some of their places."""
    plain = plain_head(network)
    sequences = [corpus.load(index, network.state_layers, CPU) for index in corpus.training[:2]]
    guesses = network.guesses(sequences, 3)
    starts = [0, len(sequences[0].token_ids)]
    rows = places_of(sequences).rows.tolist()
    aux = network.state_layers[:3]
    for number in (0, 3, len(rows) - 4):
        which = int(rows[number] >= starts[1])
        sequence, place = sequences[which], rows[number] - starts[which]
        tokens = sequence.token_ids.tolist()
        features = torch.cat([sequence.states[layer] for layer in aux], dim=-1)[: place + 1]
        for step, found in enumerate(guesses):
            if place + step + 2 > len(tokens):
                continue
            path = tokens[place + 2 : place + 2 + step]
            with torch.no_grad():
                scores = plain.log_probs(features, tokens[: place + 2], target.embedding, path)
            assert found[number].tolist() == sorted(scores, key=lambda token: -scores[token])[:3], (place, step)


def test_a_new_head_is_the_last_layer_of_its_target(target: Target) -> None:
    head = Eagle3Network(target, vocabulary_of(target), 2)
    tensors = head.tensors()
    assert torch.equal(tensors["lm_head.weight"], target.head[::2])
    assert torch.equal(tensors["layers.0.self_attn.q_proj.weight"][:, 32:], target.last_layer["self_attn.q_proj"])
    assert tensors["t2d"].nonzero().flatten().tolist() == list(range(0, 256, 2))
    assert (torch.arange(128) + tensors["d2t"]).tolist() == list(range(0, 256, 2))


def test_config_is_that_of_speculators(target: Target, tmp_path: Path) -> None:
    config = Eagle3Network(target, vocabulary_of(target), 2).config_json(())
    assert json.loads(json.dumps(config)) == config
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 3, 3]
    assert config["transformer_layer_config"]["num_hidden_layers"] == 1
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 2
