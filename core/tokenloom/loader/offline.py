"""Offline mode: one switch for every source. Nothing touches the network, and only what is cached can be used."""

from __future__ import annotations

import os

from tokenloom.errors import ConfigError, ModelError

__all__ = ["OFFLINE_VARIABLE", "offline_reason", "refuse_offline"]

OFFLINE_VARIABLE = "TOKENLOOM_OFFLINE"
_HUB_VARIABLE = "HF_HUB_OFFLINE"  # of the Hugging Face library; means the same to us
_ON = frozenset({"1", "on", "yes", "true"})
_OFF = frozenset({"", "0", "off", "no", "false"})


def offline_reason() -> str | None:
    """The setting that switches the network off, as "NAME=value", or None.

    Raises:
        ConfigError: TOKENLOOM_OFFLINE is neither on nor off.
    """
    own = os.environ.get(OFFLINE_VARIABLE, "")
    if own.lower() in _ON:
        return f"{OFFLINE_VARIABLE}={own}"
    if own.lower() not in _OFF:
        raise ConfigError(f"{OFFLINE_VARIABLE} must be 1 or 0 (or on, off, yes, no, true, false), got {own!r}")
    hub = os.environ.get(_HUB_VARIABLE, "")
    return f"{_HUB_VARIABLE}={hub}" if hub.lower() in _ON else None


def refuse_offline(source: str, where: object) -> None:
    """Raises the ModelError for a model that is not in the cache `where`, if offline mode is on."""
    reason = offline_reason()
    if reason is not None:
        raise ModelError(
            f"{source} is not in the cache {where}, and {reason} switches the network off; run "
            f"'tokenloom models pull {source}' once with the network on"
        )
