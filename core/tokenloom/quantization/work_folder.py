"""What a run leaves beside its output until it is done: finished layers, and the text's states, to go on from.

<name>.quantizing/
    lock                     locked by the run that works here
    settings.json            what the run was asked for; another run with other settings is refused
    layer-00000.safetensors  the tensors of a finished layer as the checkpoint will have them, with its reports
    states.safetensors       the residual stream behind the last finished layer, and that layer's number
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from tokenloom.errors import ConfigError, ModelError
from tokenloom.json_file import read_json
from tokenloom.quantization.layer_rounding import LayerReport

__all__ = ["WorkFolder", "forget_work"]

_SETTINGS, _STATES, _LOCK = "settings.json", "states.safetensors", "lock"
_LAYER, _REPORTS = "layer", "reports"
_SUFFIX = ".quantizing"


@final
class WorkFolder:
    """The folder of one output. Get it by `open`, which sees to it that no other run writes there.

    Args:
        target: the folder that the checkpoint is going to be.
        settings: plain data that decides the result.

    Raises:
        ConfigError: an unfinished run with other settings lies there.
        ModelError: the folder cannot be written.
    """

    @classmethod
    @contextmanager
    def open(cls, target: Path, settings: Mapping[str, Any]) -> Iterator[WorkFolder]:
        """The folder, locked until the end; arguments and errors are those of the class.

        Raises:
            ConfigError: another run works there.
        """
        with _locked(_work_path(target)):
            yield cls(target, settings)

    def __init__(self, target: Path, settings: Mapping[str, Any]) -> None:
        self.path = _work_path(target)
        self._settings = json.loads(json.dumps(settings))
        if (self.path / _SETTINGS).is_file():
            self._check_settings(read_json(self.path / _SETTINGS))
            return
        try:
            # Without settings nothing tells what these were made with: somebody was ended while deleting them.
            for leftover in (*self.path.glob(f"{_LAYER}-*"), *self.path.glob("states.*")):
                leftover.unlink()
            _write_whole(self.path / _SETTINGS, json.dumps(self._settings, indent=1))
        except OSError as error:
            raise ModelError(f"cannot write {self.path}, where layers lie until all are done: {error}") from error

    def num_finished(self) -> int:
        """Layers that are finished, from the first one on."""
        number = 0
        while self._layer(number).is_file():
            number += 1
        return number

    def states(self) -> tuple[int, list[torch.Tensor]] | None:
        """(layers that the states are behind, [T, H] of each sequence); None where there are none."""
        file = self.path / _STATES
        if not file.is_file():
            return None
        try:
            with safe_open(file, framework="pt") as held:
                number = int((held.metadata() or {})[_LAYER])
                return number, [held.get_tensor(str(index)) for index in range(len(held.keys()))]
        except (SafetensorError, KeyError, ValueError, OSError) as error:
            raise ModelError(f"{file} is damaged ({error}); delete {self.path} to begin anew") from error

    def finish_layer(
        self,
        number: int,
        tensors: Mapping[str, torch.Tensor],
        reports: Sequence[LayerReport],
        states: Sequence[torch.Tensor],
    ) -> None:
        """Keeps a layer, and then the states behind it: a run that ends in between rounds the layer once more."""
        reported = {_REPORTS: json.dumps([asdict(report) for report in reports])}
        _save_whole(tensors, self._layer(number), reported)
        if states:
            held = {str(index): state for index, state in enumerate(states)}
            _save_whole(held, self.path / _STATES, {_LAYER: str(number + 1)})

    def tensor_names(self, number: int) -> tuple[str, ...]:
        """Of a finished layer."""
        with safe_open(self._layer(number), framework="pt") as held:
            return tuple(held.keys())

    def load(self, number: int, name: str) -> torch.Tensor:
        """One tensor of a finished layer."""
        with safe_open(self._layer(number), framework="pt") as held:
            tensor: torch.Tensor = held.get_tensor(name)
            return tensor

    def reports(self, num_layers: int) -> list[LayerReport]:
        """Of all layers, first to last."""
        found: list[LayerReport] = []
        for number in range(num_layers):
            with safe_open(self._layer(number), framework="pt") as held:
                found += [LayerReport(**entry) for entry in json.loads((held.metadata() or {})[_REPORTS])]
        return found

    def remove(self) -> None:
        """Deletes the folder, once the output is in its place."""
        shutil.rmtree(self.path)

    def _layer(self, number: int) -> Path:
        return self.path / f"layer-{number:05}.safetensors"

    def _check_settings(self, found: Mapping[str, Any]) -> None:
        keys = [*self._settings, *(key for key in found if key not in self._settings)]
        changed = [key for key in keys if found.get(key) != self._settings.get(key)]
        if changed:
            was = ", ".join(f"{key}={found.get(key)}" for key in changed)
            now = ", ".join(f"{key}={self._settings.get(key)}" for key in changed)
            raise ConfigError(
                f"{self.path} holds an unfinished run with other settings ({was}; now {now}); give the same settings "
                "to go on with it, --restart to begin anew, or another output="
            )


def forget_work(target: Path) -> None:
    """Deletes what an unfinished run of this output left; does nothing where there is none."""
    if (_work_path(target) / _SETTINGS).is_file():
        with _locked(_work_path(target)):
            shutil.rmtree(_work_path(target))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Makes the folder if needed. The lock ends with the process, however that ends."""
    try:
        folder.mkdir(exist_ok=True)
        lock = (folder / _LOCK).open("ab")
    except OSError as error:
        raise ModelError(f"cannot write {folder}, where layers lie until all are done: {error}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"output={folder.name.removesuffix(_SUFFIX)}: another run works in {folder}; wait for its end, or name "
                "another output="
            ) from error
        yield


def _work_path(target: Path) -> Path:
    return target.with_name(f"{target.name}{_SUFFIX}")


def _write_whole(path: Path, text: str) -> None:
    scratch = path.with_suffix(".new")
    scratch.write_text(text + "\n", encoding="utf-8")
    os.replace(scratch, path)


def _save_whole(tensors: Mapping[str, torch.Tensor], path: Path, metadata: Mapping[str, str]) -> None:
    scratch = path.with_suffix(".new")
    try:
        save_file(dict(tensors), scratch, metadata=dict(metadata))
        os.replace(scratch, path)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot write {path}: {error}; the layers before it are kept, run the same again") from error
