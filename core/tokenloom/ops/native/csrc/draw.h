// Choosing with chance: argmax(score + Gumbel noise), the noise of `tokenloom.sampling.noise`.
#pragma once

#include <tokenloom/isa.h>

#include "row_max.h"

namespace tl {

// Parts of a row begin at multiples of it: what one round of noise covers, or several.
constexpr int64_t kDrawStep = 64;

// What a row's noise is a function of, beside the token id: Philox's key, and three words of its counter.
struct NoiseKey {
  uint32_t seed_low, seed_high, choice, position, purpose;
};

// score = (logit - top) / temperature; scores below `least` are out. `top` is the greatest of all logits of the row.
struct NoisyRow {
  const float* logits;
  int64_t size;
  float top, temperature, least;
  NoiseKey key;
};

}  // namespace tl

// Of the tokens [begin, end), begin a multiple of kDrawStep: the greatest score + noise and the first token that has it.
// The index is -1 where none is left, or where none can win the row.
TL_DECLARE_KERNEL(Greatest, noisy_best, (const NoisyRow& row, int64_t begin, int64_t end))
