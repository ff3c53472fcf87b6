"""`tokenloom calibrate-kv`: measures keys and values on a text, and writes fixed scales for `attention.kv_scales`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import click
from pydantic import Field

from tokenloom.cli.config_arguments import config_dir_option, overrides_argument
from tokenloom.cli.task_progress import task_progress
from tokenloom.compose import compose_config
from tokenloom.errors import ConfigError
from tokenloom.kv_calibration import KVMagnitudes, measure_magnitudes, scale_tensors, write_scales
from tokenloom.llm import LLM
from tokenloom.output_files import check_output_files
from tokenloom.quantization.calibration_text import calibration_sequences, calibration_text
from tokenloom.settings_base import Settings, UserPath

__all__ = ["CalibrateKVSettings", "calibrate_kv"]


class CalibrateKVSettings(Settings):
    """Keys of `tokenloom calibrate-kv`."""

    output: UserPath = Field(description="File for the scales, ending in .safetensors; for attention.kv_scales=FILE.")
    kv_dtype: Literal["int8", "fp8_e4m3"] = Field(
        default="int8", description="What keys and values are to be rounded to: int8 or fp8_e4m3."
    )
    granularity: Literal["head", "tensor"] = Field(
        default="head", description="A scale for each KV head of a layer, or one for all of them."
    )
    calibration: UserPath | None = Field(
        default=None, description="Text file to run; null takes docstrings of Python and Debian's licenses."
    )
    num_samples: Annotated[int, Field(ge=1)] = Field(default=32, description="Parts of the text that are run.")
    sample_tokens: Annotated[int, Field(ge=2)] = Field(default=512, description="Tokens of each part.")
    seed: Annotated[int, Field(ge=0)] = Field(default=0, description="Decides which parts of the text are run.")


@click.command("calibrate-kv")
@overrides_argument
@config_dir_option
def calibrate_kv(overrides: tuple[str, ...], config_dir: Path | None) -> None:
    """Measure keys and values on a text, and write fixed scales for a rounded KV cache.

    For example: tokenloom calibrate-kv kv_dtype=int8 output=scales.safetensors

    Then: tokenloom serve attention=native_cpu attention.kv_dtype=int8 attention.kv_scales=scales.safetensors
    """
    config = compose_config(overrides, config_dir=config_dir, command=CalibrateKVSettings)
    settings = config.extras_of(CalibrateKVSettings)
    target = Path(settings.output)
    calibration = None if settings.calibration is None else Path(settings.calibration)
    if target.suffix != ".safetensors":
        raise ConfigError(f"output={target}: its name must end in .safetensors")
    read = None if calibration is None else str(calibration)
    check_output_files({"calibration": read}, {"output": str(target)}, [config.engine.trace.file])
    text = calibration_text(calibration)
    magnitudes = KVMagnitudes()
    with task_progress() as progress, LLM(config=config, taps=[magnitudes]) as llm:
        longest = llm.engine.facts.max_model_len - 1  # each part has one token of output
        if settings.sample_tokens > longest:
            raise ConfigError(
                f"sample_tokens={settings.sample_tokens}: the model takes parts of {longest} tokens at most; try "
                f"sample_tokens={longest}"
            )
        sequences = calibration_sequences(
            text, llm.tokenizer, settings.num_samples, settings.sample_tokens, settings.seed
        )
        measure_magnitudes(llm, sequences, progress)
    tensors = scale_tensors(magnitudes, settings.kv_dtype, settings.granularity)
    notes = {
        "model": config.engine.model.source,
        "calibration": text.name,
        "calibration_sha256": text.digest,
        "num_tokens": str(settings.num_samples * settings.sample_tokens),
    }
    write_scales(tensors, settings.kv_dtype, target, notes)
    click.echo(
        f"wrote {target}: {settings.kv_dtype} scales of {len(magnitudes.keys)} layers, by {settings.granularity}"
    )
    plugin = "native_cpu" if settings.kv_dtype == "int8" else "triton_paged"
    words = f"attention={plugin} attention.kv_dtype={settings.kv_dtype} attention.kv_scales={target}"
    click.echo(f'\nNext:\n  tokenloom generate "The capital of France is" {words}')
