"""`tokenloom calibrate`: measures real steps, fits their costs, and writes a device preset for the simulator."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import click
import yaml
from pydantic import Field
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tokenloom.bench.provenance import provenance
from tokenloom.cli.config_arguments import config_dir_option, overrides_argument
from tokenloom.cli.console import print_table
from tokenloom.compose import ComposedConfig, compose_config
from tokenloom.errors import ConfigError
from tokenloom.executors.device_presets import DevicePreset
from tokenloom.executors.step_time import StepCosts
from tokenloom.interfaces.scheduler import SchedulerConfig
from tokenloom.llm import LLM
from tokenloom.output_files import check_output_files
from tokenloom.settings_base import Settings, UserPath
from tokenloom.simulation.calibration import (
    CalibrationPlan,
    Measured,
    describe_device,
    measure_steps,
    plan_workouts,
    recorded,
)
from tokenloom.simulation.step_time_fit import FitError, averages, fit_costs, fit_error

__all__ = ["CalibrateSettings", "calibrate"]


class CalibrateSettings(Settings):
    """Keys of `tokenloom calibrate`."""

    output: UserPath = Field(description="File for the device preset, ending in .yaml; for executor.device=FILE.")
    label: str = Field(default="calibrated", description="What results call the device.")
    seconds: Annotated[float, Field(gt=0)] = Field(
        default=120.0, description="How long to measure; small batches run once at least."
    )
    longest_prompt: Annotated[int, Field(ge=32)] = Field(default=1024, description="Longest prompt, tokens.")
    most_running: Annotated[int, Field(ge=2)] | None = Field(
        default=None, description="Most requests at once; null: scheduler.max_num_seqs."
    )


@click.command()
@overrides_argument
@config_dir_option
def calibrate(overrides: tuple[str, ...], config_dir: Path | None) -> None:
    """Measure steps of a model on this machine, and write a device preset for executor=simulated.

    For example: tokenloom calibrate output=mine.yaml model.dtype=float32

    Then: tokenloom simulate workload=trace.csv executor.device=mine.yaml
    """
    config = compose_config(overrides, config_dir=config_dir, command=CalibrateSettings)
    settings = config.extras_of(CalibrateSettings)
    _check(config, settings)
    preset, measured = _measure(config, settings)
    fitted = averages(measured.fitted)
    costs = fit_costs(fitted)
    errors = {"steps fitted": fit_error(costs, fitted), "steps held out": fit_error(costs, averages(measured.held_out))}
    _print(costs, errors)
    source = _source(config, errors["steps held out"])
    _write(Path(settings.output), preset.model_copy(update={"costs": costs, "source": source}))


def _check(config: ComposedConfig, settings: CalibrateSettings) -> None:
    target = Path(settings.output)
    if target.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"output={target}: its name must end in .yaml")
    check_output_files({}, {"output": settings.output}, [config.engine.trace.file])
    if config.engine.executor.name == "simulated":
        raise ConfigError("executor=simulated has no real steps to measure; choose executor=local")
    if config.engine.spec_decode.name != "none":
        raise ConfigError(f"spec_decode={config.engine.spec_decode.name}: calibrate measures plain steps; leave it out")


def _measure(config: ComposedConfig, settings: CalibrateSettings) -> tuple[DevicePreset, Measured]:
    watched, recording = recorded(config)
    scheduler = config.engine.scheduler.config
    assert isinstance(scheduler, SchedulerConfig), f"{scheduler} is no SchedulerConfig"
    most_running = scheduler.max_num_seqs
    if settings.most_running is not None:
        most_running = min(most_running, settings.most_running)
    plan = CalibrationPlan(settings.seconds, settings.longest_prompt, most_running)
    with LLM(config=watched) as llm:
        preset = describe_device(llm.engine.facts, llm.model_path, config, settings.label)
        workouts = plan_workouts(llm.engine, plan)
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bars:
            task = bars.add_task("measuring steps", total=plan.seconds)
            measured = measure_steps(
                llm.engine,
                recording,
                workouts,
                plan,
                preset.attention_spans,
                lambda done_s: bars.update(task, completed=min(done_s, plan.seconds)),
            )
    return preset, measured


def _print(costs: StepCosts, errors: dict[str, FitError]) -> None:
    brackets = {"prefill_token_s": costs.prefill_brackets, "decode_row_s": costs.decode_brackets}
    shown = []
    for name in ("step_s", "prefill_token_s", "decode_row_s", "kv_byte_s", "attention_pair_s"):
        shown.append((name, f"{getattr(costs, name):.4g}"))
        shown += [(f"{name} beyond {each.above}", f"{each.each_s:.4g}") for each in brackets.get(name, ())]
    print_table(("cost", "seconds"), shown)
    print_table(
        ("error of the fit", "steps", "mean", "p90", "total time"),
        [(name, str(e.num_steps), f"{e.mean:.1%}", f"{e.p90:.1%}", f"{e.total:+.1%}") for name, e in errors.items()],
    )


def _source(config: ComposedConfig, error: FitError) -> str:
    where = provenance()
    plugins = ", ".join(f"{c.kind}={c.name}" for c in config.engine.choices() if c.kind in ("attention", "quant"))
    return (
        f"Measured {datetime.now(UTC).date().isoformat()} on {where['machine']['cpu']}, "
        f"{', '.join(where['machine']['gpus']) or 'no GPU'}, {where['torch_threads']} threads, torch "
        f"{where['packages']['torch']}, model {Path(config.engine.model.source).name}, {plugins}; error on steps held "
        f"out: mean {error.mean:.1%}, p90 {error.p90:.1%}"
    )


def _write(path: Path, preset: DevicePreset) -> None:
    text = "# A device preset, written by `tokenloom calibrate`: executor=simulated executor.device=THIS_FILE\n"
    path.write_text(text + yaml.safe_dump(preset.model_dump(), sort_keys=False, width=120), encoding="utf-8")
