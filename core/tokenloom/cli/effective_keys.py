"""Keys that a command reads only some of: what the user set and it would ignore is refused."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase

from tokenloom.compose import ComposedConfig
from tokenloom.errors import ConfigError

__all__ = ["refuse_idle_keys"]

_OVERRIDE = "override "
"""How `ComposedConfig.sources` begins where the user wrote a value."""


def refuse_idle_keys(
    config: ComposedConfig, command: str, effective: Collection[str], idle: Collection[str] = ()
) -> None:
    """Refuses overrides, and presets, that change nothing for a command. Its own keys are never refused.

    Args:
        config: composed with the command's schema.
        command: its name in messages.
        effective: keys of the engine that it reads; a `*` stands for any part.
        idle: keys that match one of these, but that it does not read.

    Raises:
        ConfigError: names what has no effect, and the keys that have one.
    """
    own = type(config.extras).model_fields if config.extras is not None else {}

    def has_effect(key: str) -> bool:
        if key.partition(".")[0] in own:
            return True
        return key not in idle and any(fnmatchcase(key, pattern) for pattern in effective)

    useless = [
        _shown(key, origin.removeprefix(_OVERRIDE))
        for key, origin in config.sources.items()
        if origin.startswith(_OVERRIDE) and not has_effect(key)
    ]
    preset = config.choices.get("experiment")
    of_preset = [key for key, origin in config.sources.items() if origin.endswith(f"experiment/{preset}.yaml")]
    # A preset is for whole engines: that some of it has no effect is no mistake.
    if of_preset and not any(map(has_effect, of_preset)):
        useless.append(f"experiment={preset}")
    if useless:
        but = f" (but {', '.join(idle)})" if idle else ""
        raise ConfigError(
            f"{', '.join(useless)}: no effect on `tokenloom {command}`; leave it out. What has one: "
            f"{', '.join([*own, *effective])}{but}"
        )


def _shown(key: str, override: str) -> str:
    """The override, and the key if it is one of several that stand there."""
    written = override.partition("=")[0].lstrip("+").replace("/", ".")
    return override if key in (written, f"{written}.name") else f"{key} in {override}"
