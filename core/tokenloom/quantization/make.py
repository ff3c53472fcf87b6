"""Makes a quantized checkpoint: layer by layer, so that one layer's weights and the text's states are all it holds."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import torch

from tokenloom.checkpoint.base import Checkpoint
from tokenloom.errors import ModelError
from tokenloom.loader.export_folder import write_settings
from tokenloom.loader.export_target import check_source, check_target, put_in_place
from tokenloom.loader.export_weights import write_tensors
from tokenloom.models.skip_list import part_names
from tokenloom.quantization.calibration_text import calibration_sequences, calibration_text
from tokenloom.quantization.layer_rounding import LayerReport, LayerRounding, RoundedLayer
from tokenloom.quantization.layer_runner import LayerRunner, embedded
from tokenloom.quantization.model_card import model_card
from tokenloom.quantization.plan import QuantizePlan, described, making_of, rounded_layers, row_ranges
from tokenloom.quantization.studied_linear import StudiedLinear
from tokenloom.quantization.work_folder import WorkFolder
from tokenloom.quantization.writer import Making
from tokenloom.text.tokenizer import build_tokenizer

__all__ = ["Made", "check_quantizable", "quantize_checkpoint"]

Progress = Callable[[str, int, int], None]
_ROUNDING = "rounding layers"


@dataclass(frozen=True, slots=True)
class Made:
    """What a run has come to.

    Attributes:
        files: that were written.
        reports: of each linear layer that was rounded.
        num_resumed: decoder layers that an earlier run had finished.
    """

    files: tuple[Path, ...]
    reports: tuple[LayerReport, ...]
    num_resumed: int


def check_quantizable(checkpoint: Checkpoint) -> None:
    """Raises ModelError if the checkpoint's weights are quantized already."""
    if checkpoint.quantization is not None:
        method = checkpoint.quantization.get("quant_method", "unknown")
        raise ModelError(
            f"{checkpoint.path} holds quantized weights (quant_method={method!r}); quantize the model that it was made "
            "from"
        )


def quantize_checkpoint(
    checkpoint: Checkpoint,
    target: Path,
    plan: QuantizePlan,
    progress: Progress = lambda *_: None,
    *,
    is_replacing: bool = False,
) -> Made:
    """Rounds all decoder layers, and writes config.json, weights, tokenizer and model card to `target`.

    Finished layers are kept in "<target>.quantizing" until all are done. A run that was interrupted goes on from there,
    and gives what it would have given.

    Args:
        checkpoint: open; stays so.
        target: the folder; made if needed.
        plan: what to do.
        progress: is told (stage, done, in all).
        is_replacing: a folder that holds a model may be replaced.

    Raises:
        ConfigError: the plan does not fit the model, or an unfinished run had another one.
        ModelError: weights are quantized already; `target` may not be written to; or the text gives no finite inputs.
    """
    target = target.resolve()
    check_source(checkpoint.path, target)
    check_target(target, is_replacing=is_replacing)
    check_quantizable(checkpoint)
    run = _Run(checkpoint, plan.for_model(checkpoint), progress)
    with WorkFolder.open(target, run.settings) as work:
        num_resumed = run.round_layers(work)
        files = run.write(target, work, is_replacing=is_replacing)
    return Made(files, tuple(run.reports), num_resumed)


@final
class _Run:
    """One run; reads what an earlier one left."""

    def __init__(self, checkpoint: Checkpoint, plan: QuantizePlan, progress: Progress) -> None:
        self._checkpoint, self._plan, self._progress = checkpoint, plan, progress
        self._schemes = rounded_layers(checkpoint, plan)
        self._making: Making = making_of(checkpoint, plan, self._schemes)
        assert plan.dtype is not None, "a plan for no model"
        self._dtype = plan.dtype
        # float16 has no fast products on CPUs, and activations may be beyond it.
        self._running_dtype = torch.float32 if plan.dtype == torch.float16 else plan.dtype
        self._data: dict[str, Any] = {"calibration": None}
        self._sequences: list[list[int]] = []
        if plan.method.needs_inputs:
            self._read_text()
        self.settings = {"model": checkpoint.weights_digest, **described(plan), **self._data}
        self.reports: list[LayerReport] = []

    def round_layers(self, work: WorkFolder) -> int:
        """Rounds what is not rounded yet; returns how many layers were."""
        num_layers = self._checkpoint.config.num_layers
        first, states = self._start(work)
        for index in range(first, num_layers):
            self._progress(_ROUNDING, index, num_layers)
            runner = LayerRunner(self._checkpoint, index, self._running_dtype, states)
            done = self._round(runner, index)
            states = runner.states
            work.finish_layer(index, self._layer_tensors(index, done, runner.linears), done.reports, states)
        self._progress(_ROUNDING, num_layers, num_layers)
        self.reports = work.reports(num_layers)
        return first

    def write(self, target: Path, work: WorkFolder, *, is_replacing: bool) -> tuple[Path, ...]:
        """Writes the folder beside `target`, which it becomes at the end."""
        try:
            with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
                folder = Path(scratch, "new")
                folder.mkdir()
                self._fill(folder, work)
                put_in_place(folder, target, Path(f"{scratch}-old"), is_replacing=is_replacing)
        except OSError as error:
            raise ModelError(f"cannot write {target}: {error}; finished layers are kept, run the same again") from error
        work.remove()
        return tuple(sorted(target.iterdir()))

    def _read_text(self) -> None:
        plan, source = self._plan, self._checkpoint.tokenizer_source()
        text = calibration_text(plan.calibration)
        tokenizer = build_tokenizer(source, self._checkpoint.config.vocab_size)
        self._data = {"calibration": text.name, "calibration_sha256": text.digest}
        self._sequences = calibration_sequences(text, tokenizer, plan.num_samples, plan.sample_tokens, plan.seed)

    def _start(self, work: WorkFolder) -> tuple[int, list[torch.Tensor]]:
        """(the first layer to round, the states before it)."""
        if not self._plan.method.needs_inputs:
            return work.num_finished(), []
        held = work.states()
        return (0, embedded(self._checkpoint, self._sequences, self._running_dtype)) if held is None else held

    def _round(self, runner: LayerRunner, index: int) -> RoundedLayer:
        prefix = f"model.layers.{index}."
        norms = {
            name.removesuffix(".weight"): self._checkpoint.load(name, torch.float32)
            for name in self._checkpoint.tensor_names()
            if name.startswith(prefix) and name.endswith("layernorm.weight")
        }
        config, plan = self._checkpoint.config, self._plan
        return LayerRounding(runner, index, config, plan.method, self._schemes, norms, self._dtype).run()

    def _layer_tensors(
        self, index: int, done: RoundedLayer, linears: tuple[StudiedLinear, ...]
    ) -> dict[str, torch.Tensor]:
        """Everything that the checkpoint holds of a layer, under its names."""
        tensors: dict[str, torch.Tensor] = {}
        changed: dict[str, torch.Tensor] = {f"{name}.weight": weight for name, weight in done.norms.items()}
        for linear in linears:
            name, parts = linear.spec.name, part_names(linear.spec)
            for part, (start, stop) in zip(parts, row_ranges([shard.out_features for shard in linear.spec.shards])):
                if name in done.weights:
                    stored = self._plan.writer.tensors(done.weights[name].rows(start, stop), self._making)
                    tensors |= {f"{part}.{parameter}": tensor.clone() for parameter, tensor in stored.items()}
                if name in done.biases:
                    changed[f"{part}.bias"] = done.biases[name][start:stop]
        rounded = {name.rpartition(".")[0] for name in tensors}
        for name in self._checkpoint.tensor_names():
            part, _, parameter = name.rpartition(".")
            if name.startswith(f"model.layers.{index}.") and not (part in rounded and parameter == "weight"):
                plain = changed[name] if name in changed else self._checkpoint.load(name, torch.float32)
                tensors[name] = plain.to(self._dtype, copy=True)
        return tensors

    def _fill(self, folder: Path, work: WorkFolder) -> None:
        config = replace(self._checkpoint.config, dtype=str(self._dtype).removeprefix("torch."))
        write_settings(self._checkpoint, config, folder, self._plan.writer.settings(self._making))
        sources = self._sources(work)
        write_tensors(tuple(sources), lambda name: sources[name](), folder, self._plan.max_shard_bytes, self._progress)
        card = model_card(self._checkpoint, self._plan, self.settings, self.reports)
        (folder / "README.md").write_text(card, encoding="utf-8")
        for file in folder.iterdir():  # safetensors makes files that only their owner may read
            shutil.copymode(folder / "config.json", file)

    def _sources(self, work: WorkFolder) -> Mapping[str, Callable[[], torch.Tensor]]:
        """Where each tensor comes from."""
        sources: dict[str, Callable[[], torch.Tensor]] = {}
        for name in self._checkpoint.tensor_names():
            if not name.startswith("model.layers."):
                sources[name] = partial(self._checkpoint.load, name, self._dtype)
        for index in range(self._checkpoint.config.num_layers):
            for name in work.tensor_names(index):
                sources[name] = partial(work.load, index, name)
        return sources
