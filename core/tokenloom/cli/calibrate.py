"""`tokenloom calibrate`: measures real steps, fits their costs, and writes a device preset for the simulator."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, ClassVar

import click
import yaml
from pydantic import BaseModel, ConfigDict, Field
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
from tokenloom.simulation.calibration import (
    CalibrationPlan,
    Measured,
    describe_device,
    measure_steps,
    plan_workouts,
    recorded,
)
from tokenloom.simulation.step_time_fit import FitError, fit_costs, fit_error, medians

__all__ = ["CalibrateSettings", "calibrate"]


class CalibrateSettings(BaseModel):
    """Keys of `tokenloom calibrate`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", strict=True)

    output: str = Field(description="File for the device preset, ending in .yaml; for executor.device=FILE.")
    label: str = Field(default="calibrated", description="What results call the device.")
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        default=60.0, description="How long to measure; every workout runs once at least."
    )
    longest_prompt: Annotated[int, Field(ge=32)] = Field(default=1024, description="Longest prompt, tokens.")
    most_running: Annotated[int, Field(ge=2)] = Field(default=32, description="Most requests at once.")


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
    plan = CalibrationPlan(settings.seconds, settings.longest_prompt, settings.most_running)
    preset, measured = _measure(config, plan, settings.label)
    fitted = medians(measured.fitted)
    costs = fit_costs(fitted)
    errors = {"steps fitted": fit_error(costs, fitted), "steps held out": fit_error(costs, medians(measured.held_out))}
    _print(costs, errors)
    source = _source(config, errors["steps held out"])
    _write(Path(settings.output), preset.model_copy(update={"costs": costs, "source": source}))


def _check(config: ComposedConfig, settings: CalibrateSettings) -> None:
    target = Path(settings.output)
    if target.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"output={target}: its name must end in .yaml")
    if not target.absolute().parent.is_dir():
        raise click.UsageError(f"{target}: its folder does not exist; make it first")
    if config.engine.executor.name == "simulated":
        raise ConfigError("executor=simulated has no real steps to measure; choose executor=local")
    if config.engine.spec_decode.name != "none":
        raise ConfigError(f"spec_decode={config.engine.spec_decode.name}: calibrate measures plain steps; leave it out")


def _measure(config: ComposedConfig, plan: CalibrationPlan, label: str) -> tuple[DevicePreset, Measured]:
    watched, recording = recorded(config)
    scheduler = config.engine.scheduler.config
    assert isinstance(scheduler, SchedulerConfig), f"{scheduler} is no SchedulerConfig"
    with LLM(config=watched) as llm:
        preset = describe_device(llm.engine.facts, llm.model_path, config, label)
        workouts = plan_workouts(llm.engine, plan, scheduler.max_num_seqs)
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bars:
            task = bars.add_task("measuring steps", total=plan.seconds)
            measured = measure_steps(
                llm.engine,
                recording,
                workouts,
                plan.seconds,
                preset.attention_spans,
                lambda done_s: bars.update(task, completed=min(done_s, plan.seconds)),
            )
    return preset, measured


def _print(costs: StepCosts, errors: dict[str, FitError]) -> None:
    print_table(("cost", "seconds"), [(name, f"{value:.4g}") for name, value in costs.model_dump().items()])
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
