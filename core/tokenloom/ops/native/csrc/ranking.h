// The first numbers of a row, in rank order: the greatest first, equal ones by their place.
#pragma once

#include <tokenloom/isa.h>

namespace tl {

// Numbers are none above 0, so the smaller one is that with the greater size, and sizes are ordered as their bits are.
TL_INLINE uint32_t size_bits(const float* from) {
  uint32_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return bits & 0x7fffffffu;
}

// Ranks row[0:size], of which the first `width` are wanted, 1 <= width <= size: their places and themselves, as -|x|.
void rank_row(const float* row, int64_t size, int64_t width, int64_t* places, float* ranked);

}  // namespace tl

// smallest[i] = the smallest size bits among row[i], row[i + period], row[i + 2 * period], ..., for i < period <= size.
TL_DECLARE_KERNEL(void, smallest_sizes, (const float* row, int64_t size, int64_t period, uint32_t* smallest))
