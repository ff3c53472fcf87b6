"""Built-in logits processors, which requests name in `SamplingParams.logits_processors`."""

from __future__ import annotations

from tokenloom.interfaces.contract import PluginInfo
from tokenloom.plugins import hookimpl

__all__ = ["tokenloom_plugins"]


@hookimpl
def tokenloom_plugins() -> list[PluginInfo]:
    """Declares the processors; the modules behind them load when a request names them."""
    return [
        PluginInfo(
            kind="logits_processor",
            name="no_repeat_ngram",
            config="tokenloom.logits_processors.no_repeat_ngram:NoRepeatNgramConfig",
            contract=(1, 0),
            summary="Forbids tokens that would repeat a run of `size` tokens.",
        ),
    ]
