"""Built-in drafters and draft-length policies. Importing this package declares them; torch comes with the one used."""

from __future__ import annotations

from tokenloom.plugins import PluginInfo, hookimpl

__all__ = ["tokenloom_plugins"]


@hookimpl
def tokenloom_plugins() -> list[PluginInfo]:
    """Declares the plugins of this package."""
    return [
        PluginInfo(
            kind="spec_decode",
            name="none",
            config="tokenloom_spec_decode.none:NoneConfig",
            contract=(1, 0),
            summary="No speculative decoding.",
        ),
        PluginInfo(
            kind="spec_decode",
            name="ngram",
            config="tokenloom_spec_decode.ngram:NgramConfig",
            contract=(1, 0),
            summary="Proposes what followed the last tokens when they occurred before in the same sequence.",
            sub_kinds={"spec_decode.policy": "fixed"},
        ),
        PluginInfo(
            kind="spec_decode.policy",
            name="fixed",
            config="tokenloom_spec_decode.fixed_policy:FixedPolicyConfig",
            contract=(1, 0),
            summary="Always asks for the same number of drafts.",
        ),
    ]
