"""Files that are to be written at the end of a run, checked before it begins: nothing that ran may be lost for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenloom.errors import ConfigError

__all__ = ["check_output_files", "output_fault"]


def check_output_files(
    inputs: Mapping[str, str | None], outputs: Mapping[str, str | None], traces: Sequence[str | None] = ()
) -> None:
    """Refuses files that cannot be written, and those that would overwrite another one.

    Args:
        inputs: files that are read, by the keys that name them; None where the key names no file.
        outputs: files to write, by their keys; None for one that is not wanted.
        traces: the `trace.file` of each engine that is to run. That these differ is left to `check_trace_targets`.

    Raises:
        ConfigError: names the key, the file and what is wrong with it.
    """
    named = (*outputs.items(), *(("trace.file", file) for file in traces))
    wanted = [(key, file) for key, file in named if file is not None]
    for key, file in wanted:
        fault = output_fault(Path(file))
        if fault is not None:
            raise ConfigError(f"{key}={file}: {fault}")
    keys = {Path(file).resolve(): key for key, file in inputs.items() if file is not None}
    for key, file in wanted:
        other = keys.setdefault(Path(file).resolve(), key)
        if other != key:
            raise ConfigError(f"{other} and {key} name the same file, {file}; name another one for {key}")


def output_fault(path: Path) -> str | None:
    """Why a file cannot be written; None if it can. A file that exists is left as it is, and none is left behind."""
    try:
        target = path.resolve()
        if not target.parent.is_dir():
            return "its folder does not exist; make it first"
        if target.is_dir():
            return "it is a folder; name a file"
        if target.is_file():
            target.open("ab").close()
        elif not target.exists():
            # Nothing else tells for sure: permissions, read-only file systems, quotas, names that are too long.
            target.open("xb").close()
            target.unlink()
    except OSError as error:
        return f"it cannot be written: {error.strerror or error}"
    # What is neither, a pipe or a device, would notice that it was opened.
    return None
