"""A device with a model on it, as `executor=simulated` needs it: sizes, memory, step costs. A table, and files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from tokenloom.errors import ConfigError, did_you_mean
from tokenloom.executors.step_time import AttentionSpan, StepCosts
from tokenloom.settings_base import Settings
from tokenloom.settings_validation import located_fault

__all__ = ["DEVICE_PRESETS", "DevicePreset", "ModelShape", "load_preset"]

_Count = Annotated[int, Field(ge=1)]
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class ModelShape(Settings):
    """Sizes of the model."""

    num_layers: Annotated[int, Field(ge=1, le=10_000)] = Field(description="Decoder layers.")
    hidden_size: _Count = Field(description="Size of a hidden state.")
    intermediate_size: _Count = Field(description="Inner size of a feed-forward part.")
    num_heads: _Count = Field(description="Query heads.")
    num_kv_heads: _Count = Field(description="Key and value heads.")
    head_dim: _Count = Field(description="Size of a head.")
    # With fewer ids, prompts of a workload could not differ where they should.
    vocab_size: Annotated[int, Field(ge=16)] = Field(description="Token ids are below it.")
    max_model_len: Annotated[int, Field(ge=2)] = Field(description="Longest sequence, tokens.")
    weight_bytes: _Count = Field(description="Stored weights.")
    windows: Annotated[tuple[_Count | None, ...], Field(strict=False)] = Field(
        default=(), description="Attention window of each layer, null for full attention; empty: none has a window."
    )

    @model_validator(mode="after")
    def _one_window_a_layer(self) -> Self:
        if self.windows and len(self.windows) != self.num_layers:
            raise ValueError(f"windows must name each of {self.num_layers} layers, it has {len(self.windows)}")
        return self


class DevicePreset(Settings):
    """A device with a model on it. `tokenloom calibrate` writes one to a file, for `executor.device=FILE`."""

    name: str = Field(description="What results call it.")
    source: str = Field(description="Where the figures come from.")
    device: Literal["cpu", "cuda"] = Field(description="Device type that plugins are checked against.")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(description="Of activations and KV.")
    quant: str = Field(default="none", description="The quant plugin that weights and costs stand for.")
    memory_bytes: _Count = Field(description="Memory of the device.")
    host_bytes_per_s: Annotated[float, Field(gt=0.0, strict=False)] = Field(
        description="Bandwidth between device and host memory, for KV that is swapped."
    )
    model: ModelShape = Field(description="Sizes of the model.")
    costs: StepCosts = Field(description="What a step costs, seconds.")

    @property
    def kv_bytes_per_layer(self) -> int:
        """Keys and values of one token in one layer."""
        return 2 * self.model.num_kv_heads * self.model.head_dim * _ITEM_BYTES[self.dtype]

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token over all layers."""
        return self.model.num_layers * self.kv_bytes_per_layer

    @property
    def layers_by_window(self) -> Mapping[int | None, tuple[int, ...]]:
        """Numbers of the layers that look back equally far; in the order in which a model numbers its KV groups."""
        groups: dict[int | None, tuple[int, ...]] = {}
        for layer, window in enumerate(self.model.windows or (None,) * self.model.num_layers):
            groups[window] = (*groups.get(window, ()), layer)
        return groups

    @property
    def attention_spans(self) -> tuple[AttentionSpan, ...]:
        """The layers as step costs see them."""
        return tuple(
            AttentionSpan(window, len(layers) * self.kv_bytes_per_layer, len(layers) / self.model.num_layers)
            for window, layers in self.layers_by_window.items()
        )

    @property
    def activation_peak_bytes(self) -> int:
        """Of one token in a step, an estimate from above; logits are counted apart."""
        model = self.model
        per_token = 4 * model.hidden_size + (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
        return (per_token + 3 * model.intermediate_size) * _ITEM_BYTES[self.dtype]


_LLAMA_8B = ModelShape(
    num_layers=32,
    hidden_size=4096,
    intermediate_size=14336,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=128256,
    max_model_len=131072,
    weight_bytes=16_060_522_496,
)
"""Llama 3.1 8B in bfloat16: 8,030,261,248 parameters (model card and config.json)."""

_SMOLLM2_135M = ModelShape(
    num_layers=30,
    hidden_size=576,
    intermediate_size=1536,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    vocab_size=49152,
    max_model_len=8192,
    weight_bytes=538_060_032,
)
"""SmolLM2 135M in float32: 134,515,008 parameters (config.json)."""

_BANDWIDTH_SHARE, _MATMUL_SHARE, _ATTENTION_SHARE = 0.8, 0.5, 0.3
"""Assumed shares of the data sheet's bandwidth and of its dense bfloat16 rate that an engine reaches."""

_STEP_OVERHEAD_S, _ROW_OVERHEAD_S = 0.002, 10e-6
"""Assumed: scheduling and kernel launches of a step, and what each of its requests adds to them."""


def _roofline(name: str, gpu: str, memory_gb: int, bandwidth_gb_s: int, tflops: int, link_gb_s: int) -> DevicePreset:
    """An 8B model on a GPU, from its data sheet: a step reads all weights once; each token costs its arithmetic."""
    model = _LLAMA_8B
    byte_s = 1.0 / (bandwidth_gb_s * 1e9 * _BANDWIDTH_SHARE)
    token_s = model.weight_bytes / (tflops * 1e12 * _MATMUL_SHARE)  # 2 operations for each parameter of 2 bytes
    pair_flops = 4 * model.num_layers * model.num_heads * model.head_dim
    return DevicePreset(
        name=name,
        source=f"Assumption, not a measurement: Llama 3.1 8B, bfloat16, at {_BANDWIDTH_SHARE:.0%} of the bandwidth "
        f"({bandwidth_gb_s} GB/s) and {_MATMUL_SHARE:.0%} of the dense bfloat16 rate ({tflops} TFLOP/s) in the data "
        f"sheet of the {gpu}; {link_gb_s} GB/s to host memory at {_BANDWIDTH_SHARE:.0%}; attention over chunks at "
        f"{_ATTENTION_SHARE:.0%}; {_STEP_OVERHEAD_S * 1e3:g} ms for each "
        f"step and {_ROW_OVERHEAD_S * 1e6:g} us for each request of it on the host",
        device="cuda",
        dtype="bfloat16",
        memory_bytes=memory_gb * 10**9,
        host_bytes_per_s=link_gb_s * 1e9 * _BANDWIDTH_SHARE,
        model=model,
        costs=StepCosts(
            step_s=_STEP_OVERHEAD_S + model.weight_bytes * byte_s,
            prefill_token_s=token_s,
            decode_row_s=token_s + _ROW_OVERHEAD_S,
            kv_byte_s=byte_s,
            attention_pair_s=pair_flops / (tflops * 1e12 * _ATTENTION_SHARE),
        ),
    )


_CPU_2CORE = DevicePreset(
    name="cpu_2core_135m",
    source="Assumption, not a measurement: SmolLM2 135M, float32, on 2 cores at 60 GFLOP/s in matrix products and "
    "10 GB/s from memory, half of that for copies; calibrate on your own machine for figures that hold",
    device="cpu",
    dtype="float32",
    memory_bytes=8 * 10**9,
    host_bytes_per_s=5e9,
    model=_SMOLLM2_135M,
    costs=StepCosts(
        step_s=0.055, prefill_token_s=0.0045, decode_row_s=0.0025, kv_byte_s=1e-10, attention_pair_s=4.6e-6
    ),
)

DEVICE_PRESETS: Mapping[str, DevicePreset] = {
    preset.name: preset
    for preset in (
        _roofline("h200_8b", "NVIDIA H200 SXM", 141, 4800, 989, 64),
        _roofline("h100_8b", "NVIDIA H100 SXM", 80, 3350, 989, 64),
        _roofline("a100_8b", "NVIDIA A100 SXM 80 GB", 80, 2039, 312, 32),
        _roofline("l4_8b", "NVIDIA L4", 24, 300, 121, 32),
        _CPU_2CORE,
    )
}
"""Built-in presets by name."""


def load_preset(device: str) -> DevicePreset:
    """A preset by its name, or from a file: anything that ends in .yaml, .yml or .json.

    Raises:
        ConfigError: no such preset or file, or a key of the file is wrong.
    """
    path = Path(device)
    if path.suffix not in (".yaml", ".yml", ".json"):
        if device in DEVICE_PRESETS:
            return DEVICE_PRESETS[device]
        raise ConfigError(
            f"executor.device={device}: no such device preset; choose one of {', '.join(DEVICE_PRESETS)}, or a file "
            f"that ends in .yaml, as `tokenloom calibrate` writes it.{did_you_mean(device, DEVICE_PRESETS)}"
        )
    try:
        return DevicePreset.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"executor.device={device}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"executor.device={device} is not YAML: {error}") from error
    except ValidationError as error:
        faults = "; ".join(located_fault(fault, "the file") for fault in error.errors(include_url=False))
        raise ConfigError(f"executor.device={device} is no device preset: {faults}") from error
