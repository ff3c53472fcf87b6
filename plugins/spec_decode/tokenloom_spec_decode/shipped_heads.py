"""Heads that come with tokenloom, in `heads/`: found by the model that they were trained for.

Each is a folder as `tokenloom train-drafter` writes it. Its config.json says under `tokenloom_target` whose it is.
"""

from __future__ import annotations

from pathlib import Path

from tokenloom.errors import ConfigError
from tokenloom.json_file import read_json
from tokenloom.loader.target_fingerprint import target_fingerprint

__all__ = ["shipped_head"]

_HEADS = Path(__file__).parent / "heads"
_TARGET_KEY = "tokenloom_target"


def shipped_head(drafter: str, model: Path | None, missing: str, heads: Path = _HEADS) -> Path:
    """The folder of the head of a drafter for a model.

    Args:
        drafter: its name, e.g. "eagle3".
        model: the target's file or folder; None if it has none.
        missing: what to say where there is no such head.
        heads: where they are.

    Raises:
        ConfigError: none was trained for this model.
    """
    targets = {path.parent: read_json(path).get(_TARGET_KEY, {}) for path in sorted(heads.glob("*/config.json"))}
    own = {folder: target for folder, target in targets.items() if target.get("drafter") == drafter}
    if own and model is not None:
        fingerprint = target_fingerprint(model)
        for folder, target in own.items():
            if target.get("fingerprint") == fingerprint:
                return folder
    known = ", ".join(str(target.get("name")) for target in own.values())
    raise ConfigError(f"{missing}; the {drafter} heads that tokenloom brings are for {known}" if known else missing)
