"""Which model families there are, and how one is found by what a file says of itself."""

from __future__ import annotations

from functools import cache

from tokenloom.errors import ContractVersionError, ModelError, PluginError, did_you_mean
from tokenloom.interfaces.contract import is_compatible
from tokenloom.interfaces.model import MODEL_CONTRACT_VERSION, ModelInfo
from tokenloom.models.architecture import Architecture
from tokenloom.plugin_target import import_class
from tokenloom.plugins import default_registry

__all__ = ["BUILT_IN_MODELS", "architecture_named", "find_gguf_architecture", "find_hf_architecture", "model_infos"]

BUILT_IN_MODELS: tuple[ModelInfo, ...] = (
    ModelInfo(
        "gemma2",
        "tokenloom.models.gemma2:Gemma2Architecture",
        ("gemma2",),
        ("Gemma2ForCausalLM", "Gemma2Model"),
        ("gemma2",),
    ),
    ModelInfo(
        "gemma3",
        "tokenloom.models.gemma3:Gemma3Architecture",
        ("gemma3_text",),
        ("Gemma3ForCausalLM", "Gemma3TextModel"),
        ("gemma3",),
    ),
    ModelInfo(
        "llama", "tokenloom.models.llama:LlamaArchitecture", ("llama",), ("LlamaForCausalLM", "LlamaModel"), ("llama",)
    ),
    ModelInfo(
        "mistral", "tokenloom.models.mistral:MistralArchitecture", ("mistral",), ("MistralForCausalLM", "MistralModel")
    ),
    ModelInfo("phi3", "tokenloom.models.phi3:Phi3Architecture", ("phi3",), ("Phi3ForCausalLM", "Phi3Model"), ("phi3",)),
    ModelInfo(
        "qwen2", "tokenloom.models.qwen2:Qwen2Architecture", ("qwen2",), ("Qwen2ForCausalLM", "Qwen2Model"), ("qwen2",)
    ),
    ModelInfo(
        "qwen3", "tokenloom.models.qwen3:Qwen3Architecture", ("qwen3",), ("Qwen3ForCausalLM", "Qwen3Model"), ("qwen3",)
    ),
    ModelInfo(
        "smollm3",
        "tokenloom.models.smollm3:SmolLM3Architecture",
        ("smollm3",),
        ("SmolLM3ForCausalLM", "SmolLM3Model"),
        ("smollm3",),
    ),
)


def model_infos() -> tuple[ModelInfo, ...]:
    """Every known family; those of installed packages come after the core's.

    Raises:
        PluginError: two families claim one name.
    """
    owners = [(info, "tokenloom") for info in BUILT_IN_MODELS]
    owners += [(model.info, model.package) for model in default_registry().models]
    claims: dict[tuple[str, str], str] = {}
    for info, package in owners:
        words = [("name", info.name)]
        words += [("model_type", word) for word in info.model_types]
        words += [("GGUF architecture", word) for word in info.gguf_names]
        for claim in words:
            if claim in claims:
                raise PluginError(
                    f"two model families claim the {claim[0]} {claim[1]!r}: one from package {claims[claim]}, one from "
                    f"package {package}; uninstall one of the packages"
                )
            claims[claim] = package
    return tuple(info for info, _ in owners)


@cache
def architecture_named(name: str) -> Architecture:
    """The architecture of a family.

    Raises:
        ModelError: there is no such family.
        ContractVersionError: it was written for a contract that this core does not speak.
        PluginError: its class cannot be imported or made.
    """
    known = {info.name: info for info in model_infos()}
    info = known.get(name)
    if info is None:
        raise ModelError(
            f"unknown model architecture {name!r}; known are {', '.join(sorted(known))}.{did_you_mean(name, known)}"
        )
    if not is_compatible(info.contract, MODEL_CONTRACT_VERSION):
        theirs, ours = (".".join(map(str, version)) for version in (info.contract, MODEL_CONTRACT_VERSION))
        raise ContractVersionError(
            f"model {name} ({info.target}) was written for model contract {theirs}, this core speaks {ours} (the major "
            "must be equal, the minor not newer); install a release of its package that fits this core"
        )
    architecture = import_class(info.target, Architecture, f"model {name}")  # type: ignore[type-abstract]
    try:
        return architecture()
    except Exception as error:
        raise PluginError(
            f"model {name} cannot be loaded: {info.target} must be made without arguments, but fails with "
            f"{type(error).__name__}: {error}"
        ) from error


def find_hf_architecture(model_type: str, class_names: tuple[str, ...], origin: str) -> Architecture:
    """The family of a config.json.

    Args:
        model_type, class_names: its `model_type` and `architectures`.
        origin: the file, for the message.

    Raises:
        ModelError: no family claims it.
    """
    known = {model_type: info for info in model_infos() for model_type in info.model_types}
    info = known.get(model_type)
    is_known_class = info is not None and (
        not class_names or not info.class_names or any(name in info.class_names for name in class_names)
    )
    if info is None or not is_known_class:
        listed = ", ".join(f"{kind} ({' or '.join(known[kind].class_names) or 'any class'})" for kind in sorted(known))
        raise ModelError(
            f"{origin} describes a model of type {model_type!r} with architectures {list(class_names)}; supported are "
            f"{listed}.{did_you_mean(model_type, known)}{_broken_packages()}"
        )
    return architecture_named(info.name)


def find_gguf_architecture(gguf_name: str, origin: str) -> Architecture:
    """The family of a GGUF file by its `general.architecture`. Raises ModelError if there is none."""
    known = {name: info for info in model_infos() for name in info.gguf_names}
    info = known.get(gguf_name)
    if info is None:
        raise ModelError(
            f"{origin} holds a model of architecture {gguf_name!r}; supported are {', '.join(sorted(known))}."
            f"{did_you_mean(gguf_name, known)}{_broken_packages()}"
        )
    return architecture_named(info.name)


def _broken_packages() -> str:
    """What failed to load, as it may have brought the family that was not found."""
    return "".join(f"\nA package failed to load: {broken}" for broken in default_registry().broken)
