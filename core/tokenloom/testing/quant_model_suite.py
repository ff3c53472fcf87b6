"""Conformance of quantizers: whole models with skip lists, and the fingerprint that keeps their KV apart."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import torch

from tokenloom.errors import TokenloomError
from tokenloom.interfaces.quant import LayerSpec, Quantizer
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.models.build import build_model
from tokenloom.models.causal_lm import CausalLM
from tokenloom.models.skip_list import SkipList, part_names
from tokenloom.parallel import ParallelContext
from tokenloom.plugin_target import load_target
from tokenloom.testing.numeric_device import TOLERANCES
from tokenloom.testing.quant_cases import DOWN, HEAD, QKV, QuantCases
from tokenloom.testing.recording_quantizer import RecordingQuantizer
from tokenloom.testing.tiny_checkpoint import TinyLlama, prompt_logits

__all__ = ["QuantModelSuite"]

_PROMPT = tuple((7 * token + 3) % 61 for token in range(20))


class QuantModelSuite(QuantCases):
    """The half of `QuantSuite` that is about models and identity."""

    def test_model_multiplies_by_the_weights_of_its_layers(self) -> None:
        """A tiny Llama with this quantizer gives the logits of a dense one whose weights are the dequantized ones:
        nothing is lost between layers, with a tied head and with one of its own."""
        for tied in (True, False):
            self._check_model(skip=(), tied=tied)

    def test_model_leaves_skipped_layers_dense(self) -> None:
        """Skipped layers keep their true weights, and are those that the entry names by whole parts: "layers.1" names
        no layer 10. The core applies the list; a failure here means that the quantizer applies one of its own."""
        recorder = self._check_model(skip=("model.layers.1", "layers.10.mlp"))
        skip_list = SkipList((), ("model.layers.1", "layers.10.mlp"))
        wanted = {spec.name for spec in self.model_specs() if not skip_list.names(spec) and self._covers(spec)}
        stored = {*recorder.linears, *recorder.embeddings}
        assert stored == wanted, f"stored without need: {sorted(stored - wanted)}; left out: {sorted(wanted - stored)}"

    def test_fingerprint_is_stable(self) -> None:
        """It is part of every KV block's key: equal settings give equal fingerprints."""
        first, second = (self.make_quantizer(self.exact_dtype()) for _ in range(2))
        assert first.fingerprint, "the fingerprint is empty"
        assert first.fingerprint == second.fingerprint, f"{first.fingerprint!r}, then {second.fingerprint!r}"
        assert "0x" not in first.fingerprint, f"{first.fingerprint!r} looks like an address, which another run changes"

    def test_fingerprint_tells_settings_apart_that_round_differently(self) -> None:
        """KV of one setting must not be found under another that covers other layers or rounds them differently.
        Tried are the other values of bool and Literal fields, and `other_settings`."""
        seen: dict[str, tuple[Mapping[str, Any], torch.Tensor]] = {}
        for changes in [{}, *self._alternatives()]:
            try:
                quantizer = self.make_quantizer(self.exact_dtype(), **changes)
            except TokenloomError:
                if not changes:
                    raise
                continue  # a combination that the plugin refuses
            rounding = self._rounding(quantizer)
            other, its_rounding = seen.setdefault(quantizer.fingerprint, (changes, rounding))
            tolerance = TOLERANCES[self.exact_dtype()]
            is_same = rounding.shape == its_rounding.shape and torch.allclose(
                rounding, its_rounding, rtol=tolerance, atol=tolerance
            )
            assert is_same, f"{dict(other)} and {dict(changes)} round differently; both are {quantizer.fingerprint!r}"

    def model_specs(self) -> list[LayerSpec]:
        """The matrices of a model with twelve layers, in the order in which the core asks about them."""
        specs = [self.embedding_spec()]
        for layer in range(12):
            name = f"model.layers.{layer}"
            specs += [
                self.linear_spec(f"{name}.self_attn.qkv_proj", 64, 32, 16, 16),
                self.linear_spec(f"{name}.self_attn.o_proj", 32, 64),
                self.linear_spec(f"{name}.mlp.gate_up_proj", 64, 96),
                self.linear_spec(f"{name}.mlp.down_proj", 96, 64),
            ]
        return specs

    def check_weight(self, effective: torch.Tensor, true: torch.Tensor, dtype: torch.dtype, case: str) -> None:
        """Asserts that dequantized weights [N, K] are within `max_relative_error` of the true ones."""
        largest = true.double().abs().amax(dim=1, keepdim=True)
        bound = (self.max_relative_error + torch.finfo(dtype).eps / 2 + 1e-6) * largest
        error = (effective - true.double()).abs()
        is_wrong = ~(error <= bound)
        if bool(is_wrong.any()):
            row, column = (int(index) for index in is_wrong.nonzero()[0])
            raise AssertionError(
                f"{case}: {int(is_wrong.sum())} of {error.numel()} weights are off by more than the stated "
                f"{self.max_relative_error:.4g} of their row; at row {row}, column {column} "
                f"{float(effective[row, column]):.6g} stands for {float(true[row, column]):.6g} "
                f"({float(error[row, column] / largest[row, 0]):.4g} of the row)"
            )

    def check_same(self, actual: torch.Tensor, expected: torch.Tensor, case: str) -> None:
        """Asserts equality but for a few roundings of the dtype: the same numbers, not another order of summation."""
        difference = (actual.double().cpu() - expected.double().cpu()).abs()
        bound = 4 * torch.finfo(actual.dtype).eps * max(1.0, float(expected.abs().max()) if expected.numel() else 0.0)
        assert bool((difference <= bound).all()), (
            f"{case}: off by up to {float(difference.max()):.4g}, allowed {bound:.2g}"
        )

    def _covers(self, spec: LayerSpec) -> bool:
        return self.make_quantizer(self.exact_dtype()).covers(spec)

    def _alternatives(self) -> Iterator[Mapping[str, Any]]:
        yield from self.other_settings
        current = self.make_config()
        for name, value in load_target(self.info).model_fields.items():
            allowed: tuple[Any, ...] = ()
            if value.annotation is bool:
                allowed = (True, False)
            elif get_origin(value.annotation) is Literal:
                allowed = get_args(value.annotation)
            yield from ({name: other} for other in allowed if other != dict(current)[name])

    def _rounding(self, quantizer: Quantizer) -> torch.Tensor:
        """What a setting does, in numbers: which layers it covers, and products of its layers."""
        kind = self.exact_dtype()
        head = self.linear_spec(HEAD, 64, 16)
        facts = [torch.tensor([float(quantizer.covers(spec)) for spec in (head, *self.model_specs())])]
        for spec in (self.linear_spec(DOWN, 130, 24), self.linear_spec(QKV, 17, 48, 7, 1)):
            if quantizer.covers(spec):
                weights = quantizer.create_linear(spec)
                self.load(weights, self.tensors_of(spec))
                facts += [
                    weights.apply(self.random_rows(spec, 5, kind)).flatten(),
                    self.effective_weight(weights, spec, kind).flatten(),
                ]
        return torch.cat([fact.double().cpu() for fact in facts])

    def _check_model(self, skip: tuple[str, ...], tied: bool = True) -> RecordingQuantizer:
        """Builds the tiny model with this quantizer and a dense one from the weights that result; compares logits."""
        kind, device = self.exact_dtype(), self.numeric_device()
        tiny = TinyLlama(unit=math.lcm(16, self.in_multiple, self.out_multiple), tied=tied)
        tensors = tiny.weights()
        with tempfile.TemporaryDirectory() as folder:
            plain = tiny.write(Path(folder) / "plain", tensors, {})
            asked = RecordingQuantizer()
            self._build(plain, asked, skip)
            packed = self._pack(tensors, asked)
            recorder = RecordingQuantizer(self.make_quantizer(kind, skip=skip))
            model = self._build(tiny.write(Path(folder) / "packed", packed, self.checkpoint), recorder, skip)
            dense = tensors | self._dequantized(recorder)
            reference = self._build(tiny.write(Path(folder) / "dense", dense, {}), RecordingQuantizer(), ())
        logits, wanted = (prompt_logits(each, _PROMPT, kind, device) for each in (model, reference))
        assert bool(torch.isfinite(logits).all()), "the model's logits are not finite"
        difference = float((logits - wanted).abs().max() / wanted.abs().max())
        # Roundings of activations add up over some fifty layers, like those of the dtype.
        bound = 10 * TOLERANCES[kind] + 50 * self.max_activation_error
        assert difference <= bound, (
            f"logits differ from those of a dense model with the dequantized weights by {difference:.3g} of the "
            f"largest, allowed {bound:.3g}; skip list {list(skip)}, tied head: {tied}"
        )
        return recorder

    def _pack(self, tensors: Mapping[str, torch.Tensor], asked: RecordingQuantizer) -> dict[str, torch.Tensor]:
        """The checkpoint in this format: the layers that will be quantized as `make_tensors` has them."""
        packed = dict(tensors)
        for spec in asked.asked.values():
            if self._covers(spec):
                for part in part_names(spec):
                    weight = packed.pop(f"{part}.weight")
                    packed |= {f"{part}.{name}": tensor for name, tensor in self.make_tensors(spec, weight).items()}
        return packed

    def _dequantized(self, recorder: RecordingQuantizer) -> dict[str, torch.Tensor]:
        """The weights that the layers really use, under their names in the checkpoint."""
        found: dict[str, torch.Tensor] = {}
        for name, weights in {**recorder.linears, **recorder.embeddings}.items():
            spec = recorder.asked[name]
            parts = self.effective_weight(weights, spec, self.exact_dtype()).float()
            start = 0
            for part, shard in zip(part_names(spec), spec.shards):
                found[f"{part}.weight"] = parts[start : start + shard.out_features].clone()
                start += shard.out_features
        return found

    def _build(self, folder: Path, quantizer: Quantizer, skip: tuple[str, ...]) -> CausalLM:
        checkpoint = open_checkpoint(folder)
        try:
            return build_model(
                checkpoint,
                quantizer=quantizer,
                dtype=self.exact_dtype(),
                device=self.numeric_device(),
                parallel=ParallelContext(),
                skip=skip,
            )
        finally:
            checkpoint.close()
