"""The quant plugin `auto`: what the checkpoint's own settings name, and nothing where it has none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import final

from tokenloom.errors import ModelError
from tokenloom.interfaces.quant import QuantConfig, QuantContext, Quantizer
from tokenloom_quant.affine_quantizer import PLUGINS_BY_METHOD
from tokenloom_quant.awq import AWQConfig
from tokenloom_quant.bitsandbytes import BitsAndBytesConfig
from tokenloom_quant.compressed_tensors import CompressedTensorsConfig
from tokenloom_quant.fp8 import FP8Config
from tokenloom_quant.gptq import GPTQConfig
from tokenloom_quant.none import NoneConfig

__all__ = ["AutoQuantConfig"]

_CONFIGS: Mapping[str, Callable[[], QuantConfig]] = {
    "awq": AWQConfig,
    "gptq": GPTQConfig,
    "compressed_tensors": CompressedTensorsConfig,
    "fp8": FP8Config,
    "bitsandbytes": BitsAndBytesConfig,
}


@final
class AutoQuantConfig(QuantConfig):
    """Stands for the plugin that reads the checkpoint's `quant_method`; `none` for plain weights and GGUF files."""

    def build(self, context: QuantContext) -> Quantizer:
        """Constructs the chosen quantizer, and says on stderr which it is.

        Raises:
            ModelError: no plugin reads this quant_method.
        """
        if not context.checkpoint:
            return NoneConfig().build(context)
        method = context.checkpoint.get("quant_method")
        plugin = PLUGINS_BY_METHOD.get(str(method))
        if plugin is None:
            raise ModelError(
                f"the checkpoint is quantized with quant_method={method!r}, which no plugin here reads; readable are "
                f"{', '.join(PLUGINS_BY_METHOD)}: take a checkpoint in one of these, or a plain one"
            )
        print(f"tokenloom: quant=auto is {plugin}, as the checkpoint says", file=sys.stderr, flush=True)
        return _CONFIGS[plugin]().build(context)
