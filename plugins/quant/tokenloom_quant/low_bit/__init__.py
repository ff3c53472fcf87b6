"""Products with weights of 4 and 8 bits in C++ for the CPU; what `int8_dynamic`, `int4` and `gguf` multiply with."""

from tokenloom_quant.low_bit.affine_codes import AffineCodes
from tokenloom_quant.low_bit.product import LowBitProduct

__all__ = ["AffineCodes", "LowBitProduct"]
