"""Built-in quantizers. Importing this package declares them; torch comes with the plugin that is used."""

from __future__ import annotations

from tokenloom.plugins import Capabilities, PluginInfo, hookimpl

__all__ = ["tokenloom_plugins"]

_DTYPES = ("float32", "bfloat16", "float16")


@hookimpl
def tokenloom_plugins() -> list[PluginInfo]:
    """Declares the quantizers of this package."""
    return [
        PluginInfo(
            kind="quant",
            name="none",
            config="tokenloom_quant.none:NoneConfig",
            contract=(1, 0),
            summary="Weights stay in the model's dtype.",
            capabilities=Capabilities(dtypes=_DTYPES, flags=frozenset({"covers_nothing", "deterministic"})),
        ),
        PluginInfo(
            kind="quant",
            name="int8",
            config="tokenloom_quant.int8:Int8Config",
            contract=(1, 0),
            summary="Weight-only int8, rounded to nearest at load, one scale per output channel.",
            capabilities=Capabilities(devices=("cpu", "cuda"), dtypes=_DTYPES, flags=frozenset({"deterministic"})),
        ),
    ]
