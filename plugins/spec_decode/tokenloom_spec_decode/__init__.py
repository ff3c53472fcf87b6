"""Built-in drafters and draft-length policies. Importing this package declares them; torch comes with the one used."""

from __future__ import annotations

from tokenloom.plugins import Capabilities, PluginInfo, hookimpl

__all__ = ["tokenloom_plugins"]

_PLUGINS = (
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
        kind="spec_decode",
        name="draft_model",
        config="tokenloom_spec_decode.draft_model:DraftModelConfig",
        contract=(1, 2),
        summary="A smaller model with the same tokenizer drafts token by token, with KV memory of its own.",
        sub_kinds={"spec_decode.policy": "fixed"},
    ),
    PluginInfo(
        kind="spec_decode",
        name="eagle",
        config="tokenloom_spec_decode.eagle:EagleConfig",
        contract=(1, 2),
        summary="A one-layer head on the target's final state drafts a chain, or a tree where it is sure.",
        sub_kinds={"spec_decode.policy": "fixed"},
    ),
    PluginInfo(
        kind="spec_decode",
        name="eagle3",
        config="tokenloom_spec_decode.eagle3:Eagle3Config",
        contract=(1, 2),
        summary="A one-layer head on states of three of the target's layers drafts a chain or a tree.",
        sub_kinds={"spec_decode.policy": "fixed"},
    ),
    PluginInfo(
        kind="spec_decode",
        name="mtp",
        config="tokenloom_spec_decode.mtp:MtpConfig",
        contract=(1, 2),
        summary="A multi-token-prediction module that was trained with the model drafts a chain or a tree.",
        sub_kinds={"spec_decode.policy": "fixed"},
    ),
    PluginInfo(
        kind="spec_decode",
        name="medusa",
        config="tokenloom_spec_decode.medusa:MedusaConfig",
        contract=(1, 0),
        summary="Heads on the target's final hidden state guess several tokens ahead at once, as a tree.",
        sub_kinds={"spec_decode.policy": "fixed"},
    ),
    PluginInfo(
        kind="spec_decode",
        name="suffix",
        config="tokenloom_spec_decode.suffix:SuffixConfig",
        contract=(1, 0),
        summary="Proposes what most often followed the last tokens, in the same sequence and in earlier outputs.",
        capabilities=Capabilities(flags=frozenset({"shared_statistics"})),
        sub_kinds={"spec_decode.policy": "fixed"},
    ),
    PluginInfo(
        kind="spec_decode",
        name="self_spec",
        config="tokenloom_spec_decode.self_spec:SelfSpecConfig",
        contract=(1, 3),
        summary="The target drafts for itself with some of its own layers: early exit, or parts that it can spare.",
        capabilities=Capabilities(flags=frozenset({"shared_statistics"})),
        sub_kinds={"spec_decode.policy": "adaptive"},
    ),
    PluginInfo(
        kind="spec_decode",
        name="synthetic",
        config="tokenloom_spec_decode.synthetic:SyntheticConfig",
        contract=(1, 2),
        summary="Drafts that are right as often as given: of answers that it has heard before, and in simulations.",
        capabilities=Capabilities(flags=frozenset({"shared_statistics"})),
        sub_kinds={"spec_decode.policy": "fixed"},
    ),
    PluginInfo(
        kind="spec_decode.policy",
        name="fixed",
        config="tokenloom_spec_decode.fixed_policy:FixedPolicyConfig",
        contract=(1, 0),
        summary="Always asks for the same number of drafts.",
    ),
    PluginInfo(
        kind="spec_decode.policy",
        name="adaptive",
        config="tokenloom_spec_decode.adaptive_policy:AdaptivePolicyConfig",
        contract=(1, 1),
        summary="As many drafts as pay, by what was accepted and what it cost; none where it does not pay.",
        capabilities=Capabilities(flags=frozenset({"shared_statistics"})),
    ),
)


@hookimpl
def tokenloom_plugins() -> list[PluginInfo]:
    """Declares the plugins of this package."""
    return list(_PLUGINS)
