"""Built-in quantizers. Importing this package declares them; torch comes with the plugin that is used."""

from __future__ import annotations

from tokenloom.plugins import Capabilities, PluginInfo, hookimpl

__all__ = ["tokenloom_plugins"]

_DTYPES = ("float32", "bfloat16", "float16")
_READER = Capabilities(devices=("cpu", "cuda"), dtypes=_DTYPES, flags=frozenset({"deterministic", "own_files"}))
_LOW_BIT = Capabilities(devices=("cpu",), dtypes=("float32", "bfloat16"), flags=frozenset({"deterministic"}))


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
        PluginInfo(
            kind="quant",
            name="int8_dynamic",
            config="tokenloom_quant.int8_dynamic:Int8DynamicConfig",
            contract=(1, 0),
            summary="int8 weights times int8 activations, in groups, in C++ for CPUs, compiled on first use.",
            capabilities=_LOW_BIT,
        ),
        PluginInfo(
            kind="quant",
            name="int4",
            config="tokenloom_quant.int4:Int4Config",
            contract=(1, 0),
            summary="Weight-only int4 in groups, rounded to nearest at load, in C++ for CPUs, compiled on first use.",
            capabilities=_LOW_BIT,
        ),
        PluginInfo(
            kind="quant",
            name="gguf",
            config="tokenloom_quant.gguf:GGUFConfig",
            contract=(1, 1),
            summary="Blocks of GGUF files as they are, without decoding, in C++ for CPUs, compiled on first use.",
            capabilities=_LOW_BIT,
        ),
        *_readers(),
    ]


def _readers() -> list[PluginInfo]:
    """Of checkpoints that are quantized already."""
    return [
        PluginInfo(
            kind="quant",
            name="awq",
            config="tokenloom_quant.awq:AWQConfig",
            contract=(1, 2),
            summary="Checkpoints of AutoAWQ, 4 bits: packed where a product takes them, else dequantized.",
            capabilities=_READER,
        ),
        PluginInfo(
            kind="quant",
            name="gptq",
            config="tokenloom_quant.gptq:GPTQConfig",
            contract=(1, 2),
            summary="Checkpoints of GPTQ, 2 to 8 bits: packed where a product takes them, else dequantized.",
            capabilities=_READER,
        ),
        PluginInfo(
            kind="quant",
            name="compressed_tensors",
            config="tokenloom_quant.compressed_tensors:CompressedTensorsConfig",
            contract=(1, 2),
            summary="Checkpoints of llm-compressor: packed where a product takes them, else dequantized.",
            capabilities=_READER,
        ),
        PluginInfo(
            kind="quant",
            name="fp8",
            config="tokenloom_quant.fp8:FP8Config",
            contract=(1, 2),
            summary="Checkpoints in 8-bit floats: packed on GPUs with e4m3, else dequantized at load.",
            capabilities=_READER,
        ),
        PluginInfo(
            kind="quant",
            name="bitsandbytes",
            config="tokenloom_quant.bitsandbytes:BitsAndBytesConfig",
            contract=(1, 2),
            summary="Checkpoints of bitsandbytes: 4 bits (nf4, fp4), dequantized at load, or 8 bits (LLM.int8).",
            capabilities=_READER,
        ),
        PluginInfo(
            kind="quant",
            name="auto",
            config="tokenloom_quant.auto:AutoQuantConfig",
            contract=(1, 2),
            summary="The plugin that reads the checkpoint, by its own settings; none for plain weights.",
            capabilities=_READER,
        ),
    ]
