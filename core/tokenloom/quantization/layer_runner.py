"""One decoder layer of any family, with a calibration text running through it part by part.

Every part runs once over the whole text: what a part makes is kept, and replayed when the part behind it is rounded.
Thus each linear layer is rounded for the inputs that the rounded layers before it give.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import torch

from tokenloom.checkpoint.base import Checkpoint
from tokenloom.errors import ModelError
from tokenloom.models.causal_lm import ForwardContext
from tokenloom.models.decoder import Decoder
from tokenloom.models.layers import LayerFactory
from tokenloom.models.load_targets import LoadTarget
from tokenloom.models.registry import architecture_named
from tokenloom.models.skip_list import SkipList
from tokenloom.models.weight_loading import ignore_progress
from tokenloom.ops.table import build_op_table
from tokenloom.parallel import ParallelContext
from tokenloom.quantization.calibration_attention import CalibrationAttention, NoMetadata
from tokenloom.quantization.layer_checkpoint import LayerCheckpoint
from tokenloom.quantization.studied_linear import StudiedLinear, StudyingQuantizer

__all__ = ["LayerRunner", "embedded", "linear_layers"]

_CPU = torch.device("cpu")
Observer = Callable[[torch.Tensor], None]
"""Told of the input [T, K] of a linear layer, a sequence at a time."""


@final
class LayerRunner:
    """Decoder layer `index`, on the CPU.

    Args:
        checkpoint: of the whole model; only this layer is read.
        index: the layer's number.
        dtype: of activations.
        states: the residual stream before the layer, [T, H] for each sequence; changed, and replaced by `finish`. Empty
            where nothing is to be run.

    Attributes:
        qkv, output, gate_up, down: the linear layers, in the order in which they are run.
    """

    def __init__(self, checkpoint: Checkpoint, index: int, dtype: torch.dtype, states: list[torch.Tensor]) -> None:
        quantizer = StudyingQuantizer(dtype)
        longest = max((state.shape[0] for state in states), default=1)
        # Rotary tables of the model's own length: the way that positions are scaled may depend on it.
        model, self._targets = _make(checkpoint, quantizer, dtype, range(index, index + 1), None)
        model.load_weights(LayerCheckpoint(checkpoint), ignore_progress)
        self.states = states
        self._layer, self._attention = model.layers[0], CalibrationAttention()
        self._dtype = dtype
        self._rotation = model.rotations(torch.arange(longest))[0]
        inner = [linear for name, linear in quantizer.linears.items() if name.startswith(f"model.layers.{index}.")]
        if len(inner) != 4:
            raise ModelError(
                f"{checkpoint.path}: layer {index} has {len(inner)} linear layers ({', '.join(quantizer.linears)}); "
                "quantize knows layers of four: q, k and v, output, gate and up, down"
            )
        self.qkv, self.output, self.gate_up, self.down = inner
        self._kept: list[torch.Tensor] = []

    @property
    def linears(self) -> tuple[StudiedLinear, ...]:
        """All four, in the order in which they are run."""
        return (self.qkv, self.output, self.gate_up, self.down)

    def observe_qkv(self, observer: Observer) -> None:
        """Runs the norm before q, k and v."""
        self._set(idle=True, observed=self.qkv)
        self._run(lambda _, state: self._attend(state), observer, self.qkv)

    def observe_output(self, observer: Observer) -> None:
        """Runs q, k, v and attention, and keeps the result."""
        self._set(idle=False, observed=self.output, multiplying=(self.qkv,))
        self._kept = []
        self._run(lambda _, state: self._attend(state), self._keeping(observer), self.output)

    def observe_gate_up(self, observer: Observer) -> None:
        """Runs the output projection on what was kept, adds it, and norms the sum."""
        self._set(idle=True, observed=self.gate_up, multiplying=(self.output,))

        def run(index: int, state: torch.Tensor) -> None:
            self.output.replayed = self._kept[index]
            delta, residual = self._attend(state)
            self._layer.ffn_part(delta, residual)  # which writes the sum into the stream
            self.states[index] = residual

        self._run(run, observer, self.gate_up)
        self.output.replayed, self._kept = None, []

    def observe_down(self, observer: Observer) -> None:
        """Runs gate and up, and keeps their product."""
        self._set(idle=True, observed=self.down, multiplying=(self.gate_up,))
        self._run(lambda _, state: self._layer.ffn_part(None, state), self._keeping(observer), self.down)

    def finish(self) -> list[torch.Tensor]:
        """Runs the down projection on what was kept; returns the residual stream after the layer."""
        self._set(idle=True, observed=None, multiplying=(self.down,))

        def run(index: int, state: torch.Tensor) -> None:
            self.down.replayed = self._kept[index]
            delta, residual = self._layer.ffn_part(None, state)
            self.states[index] = residual + delta

        self._run(run, None, None)
        self.down.replayed, self._kept = None, []
        return self.states

    def divide_kept(self, divisors: torch.Tensor) -> None:
        """Divides the features of what was kept by fp32 [K], as whatever made them now does."""
        self._kept = [(rows.float() / divisors).to(rows.dtype) for rows in self._kept]

    def set_norm(self, name: str, weight: torch.Tensor) -> None:
        """Gives the norm `name` (full, without ".weight") another weight, as a checkpoint would have it."""
        target = next(target for target in self._targets if name in target.parts)
        target.load(f"{name}.weight", weight)

    def _attend(self, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        length = state.shape[0]
        rotation = self._rotation
        if rotation is not None and length < rotation.cos.shape[0]:
            rotation = type(rotation)(rotation.cos[:length], rotation.signed_sin[:length])
        group = self._layer.facts.group_id
        context = ForwardContext(torch.arange(length), self._attention, (NoMetadata(),) * (group + 1), ())
        return self._layer.attention_part(None, state, rotation, (), context)

    def _set(self, *, idle: bool, observed: StudiedLinear | None, multiplying: Sequence[StudiedLinear] = ()) -> None:
        self._attention.is_idle = idle
        for linear in self.linears:
            linear.is_multiplying = linear in multiplying
            linear.observer = None
        assert observed not in multiplying, "a layer that is observed is not multiplied in the same pass"

    def _run(
        self, run: Callable[[int, torch.Tensor], object], observer: Observer | None, observed: StudiedLinear | None
    ) -> None:
        if observed is not None:
            observed.observer = observer
        for index, state in enumerate(self.states):
            run(index, state)
        if observed is not None:
            observed.observer = None

    def _keeping(self, observer: Observer) -> Observer:
        def keep(rows: torch.Tensor) -> None:
            self._kept.append(rows)
            observer(rows)

        return keep


def embedded(checkpoint: Checkpoint, sequences: Sequence[Sequence[int]], dtype: torch.dtype) -> list[torch.Tensor]:
    """What enters the first layer: [T, H] for each sequence of token ids."""
    table = checkpoint.load("model.embed_tokens.weight", dtype)
    scale = torch.tensor(checkpoint.config.embedding_scale, dtype=dtype).item()
    return [table[torch.tensor(sequence)] * scale for sequence in sequences]


def linear_layers(checkpoint: Checkpoint) -> tuple[StudiedLinear, ...]:
    """All linear layers of the model, empty: for what may be refused before anything is read."""
    quantizer = StudyingQuantizer(torch.float32)
    _make(checkpoint, quantizer, torch.float32, None, 1)
    return tuple(quantizer.linears.values())


def _make(
    checkpoint: Checkpoint, quantizer: StudyingQuantizer, dtype: torch.dtype, layers: range | None, max_len: int | None
) -> tuple[Decoder, tuple[LoadTarget, ...]]:
    config = checkpoint.config
    factory = LayerFactory(quantizer, SkipList(), dtype, _CPU, ParallelContext(), build_op_table(_CPU), max_len)
    model = architecture_named(config.architecture).make_model(config, factory, layers)
    if not isinstance(model, Decoder):
        raise ModelError(
            f"models of architecture {config.architecture!r} are not run layer by layer; quantize needs a family that "
            "is built as tokenloom's Decoder"
        )
    return model, tuple(factory.targets)
