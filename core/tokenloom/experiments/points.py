"""The points of an experiment: the sweep of a preset, what the user changes about it, and a configuration for each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from tokenloom.compose import ComposedConfig, compose_config
from tokenloom.compose.sweep import SweepPoint, expand_sweep

__all__ = ["ExperimentPoint", "merge_sweep", "plan_points"]


@dataclass(frozen=True, slots=True)
class ExperimentPoint:
    """One combination.

    Attributes:
        index: its place in the experiment, from 0.
        changes: the swept keys with their values here, as written.
        config: composed and validated.
    """

    index: int
    changes: Mapping[str, str]
    config: ComposedConfig

    @property
    def name(self) -> str:
        """What tables and plots call it."""
        return " ".join(f"{key}={value}" for key, value in self.changes.items()) or "all"


def merge_sweep(sweep: Mapping[str, str], overrides: Sequence[str]) -> list[str]:
    """A preset's sweep as overrides before the user's own, less the keys that the user sets."""
    own = {_key(override) for override in overrides}
    return [f"{key}={values}" for key, values in sweep.items() if _key(key) not in own] + list(overrides)


def plan_points(
    overrides: Sequence[str], *, config_dir: Path | None, command: type[BaseModel], text_keys: Collection[str]
) -> list[ExperimentPoint]:
    """Composes every point, so that a mistake in the last one is found before the first one runs.

    A field `sweep` of `command` (key -> values in Hydra's grammar), which presets set, adds to the user's own sweeps.

    Raises:
        ConfigError, PluginError, ContractVersionError: a point is no valid configuration, or a sweep no valid sweep.
    """
    points: list[SweepPoint] = []
    for own in expand_sweep(overrides, text_keys):
        # A preset may itself be swept, so each brings its sweep.
        base = compose_config(own.overrides, config_dir=config_dir, command=command)
        assert base.extras is not None
        sweep: Mapping[str, str] = base.extras.model_dump().get("sweep", {})
        merged = merge_sweep(sweep, own.overrides)
        swept = {_key(change) for change in own.changes}
        for point in expand_sweep(merged, text_keys):
            is_change = [_key(word) in swept or word in point.changes for word in point.overrides]
            changes = [word for word, flag in zip(point.overrides, is_change, strict=True) if flag]
            points.append(SweepPoint(point.overrides, tuple(changes)))
    return [
        ExperimentPoint(
            index,
            {_key(change): change.partition("=")[2] for change in point.changes},
            compose_config(point.overrides, config_dir=config_dir, command=command),
        )
        for index, point in enumerate(points)
    ]


def _key(override: str) -> str:
    return override.partition("=")[0].strip().lstrip("+~").replace("/", ".")
