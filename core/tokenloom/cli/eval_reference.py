"""Words of the form `reference.KEY=VALUE`: the configuration that a model is compared with."""

from __future__ import annotations

from collections.abc import Sequence

from tokenloom.cli.eval_settings import EvalCompareSettings
from tokenloom.errors import ConfigError
from tokenloom.interfaces.contract import KINDS

__all__ = ["reference_overrides", "split_reference"]

_PREFIX = "reference."


def split_reference(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits overrides into (the model's, the reference's); the latter without the word `reference.`.

    Raises:
        ConfigError: the reference is given a key of the command itself, which holds for both.
    """
    own = [word for word in overrides if not word.startswith(_PREFIX)]
    reference = [word.removeprefix(_PREFIX) for word in overrides if word.startswith(_PREFIX)]
    for word in reference:
        if _key(word) in EvalCompareSettings.model_fields:
            raise ConfigError(f"{_PREFIX}{word}: {_key(word)} holds for model and reference alike; set {_key(word)}=")
    return own, reference


def reference_overrides(own: Sequence[str], reference: Sequence[str]) -> list[str]:
    """The model's overrides, changed to what the reference says.

    Where it names another plugin (`reference.quant=none`), the settings of the model's own one do not hold for it.
    """
    replaced = [_key(word) for word in reference if _key(word) in KINDS]
    kept = [word for word in own if _key(word).partition(".")[0] not in replaced]
    return [*kept, *reference]


def _key(override: str) -> str:
    return override.partition("=")[0].strip().lstrip("+~").replace("/", ".")
