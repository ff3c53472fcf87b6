// A single row of packed weights, for embeddings.
#pragma once

#include "low_bit.h"

namespace tl {

// Row `index` of W, fp32 [in_features].
void unpack_row(const LowBitWeights& weights, int64_t index, float* to);

}  // namespace tl
