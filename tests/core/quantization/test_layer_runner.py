"""Layers that are run part by part, against the whole model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.core.loader.hf_families import FAMILY_CONFIGS, write_hf_family
from tests.core.models.dense_attention import Sequences
from tests.plugins.quant.checkpoint_packing import load_model
from tests.tiny_model import write_tiny_llama
from tokenloom.errors import ModelError
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.quantization.layer_runner import LayerRunner, embedded, linear_layers
from tokenloom_quant.none import NoneConfig

SEQUENCES = [[(7 * token + 3) % 70 for token in range(50)], [(5 * token + 1) % 70 for token in range(40)]]


def run_layer(runner: LayerRunner) -> dict[str, list[torch.Tensor]]:
    """All passes; returns what each linear layer was given."""
    seen: dict[str, list[torch.Tensor]] = {linear.spec.name: [] for linear in runner.linears}
    qkv, output, gate_up, down = seen.values()
    runner.observe_qkv(qkv.append)
    runner.observe_output(output.append)
    runner.observe_gate_up(gate_up.append)
    runner.observe_down(down.append)
    runner.finish()
    return seen


@pytest.mark.parametrize("family", sorted(FAMILY_CONFIGS))
def test_passes_over_all_layers_give_the_states_of_the_model(tmp_path: Path, family: str) -> None:
    folder = write_hf_family(tmp_path, family)
    checkpoint = open_checkpoint(folder)
    num_layers = checkpoint.config.num_layers
    states = embedded(checkpoint, SEQUENCES, torch.float32)
    for index in range(num_layers):
        runner = LayerRunner(checkpoint, index, torch.float32, states)
        run_layer(runner)
        states = runner.states
    model = load_model(folder, NoneConfig())
    for state, sequence in zip(states, SEQUENCES):
        context = Sequences(model, 1, 64).context([len(sequence)], (num_layers - 1,))
        expected = model.forward(torch.tensor(sequence), context).captured[num_layers - 1]
        torch.testing.assert_close(state, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_layers_that_follow_see_the_weights_that_were_put_in_place(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_tiny_llama(tmp_path))
    first = LayerRunner(checkpoint, 0, torch.float32, embedded(checkpoint, SEQUENCES, torch.float32))
    before = run_layer(first)
    second = LayerRunner(checkpoint, 0, torch.float32, embedded(checkpoint, SEQUENCES, torch.float32))
    second.output.use(torch.zeros(64, 64))
    second.down.use(torch.zeros(64, 128))
    after = run_layer(second)
    same = [name for name in before if torch.equal(before[name][0], after[name][0])]
    assert same == ["model.layers.0.self_attn.qkv_proj", "model.layers.0.self_attn.o_proj"]
    start = embedded(checkpoint, SEQUENCES, torch.float32)
    assert all(torch.equal(state, original) for state, original in zip(second.states, start))


def test_all_linear_layers_are_known_before_anything_is_read(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_tiny_llama(tmp_path, tied=False))
    names = [linear.spec.name for linear in linear_layers(checkpoint)]
    assert len(names) == 2 * 4 + 1
    assert names[-1] == "lm_head"
    assert names[0] == "model.layers.0.self_attn.qkv_proj"


def test_a_layer_of_another_kind_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = open_checkpoint(write_tiny_llama(tmp_path))
    monkeypatch.setattr("tokenloom.quantization.layer_runner.Decoder", int)
    with pytest.raises(ModelError, match="models of architecture 'llama' are not run layer by layer"):
        linear_layers(checkpoint)
