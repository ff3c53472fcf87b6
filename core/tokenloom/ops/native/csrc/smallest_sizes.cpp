#include "ranking.h"

namespace tl::TL_ISA {

void smallest_sizes(const float* row, int64_t size, int64_t period, uint32_t* smallest) {
  for (int64_t i = 0; i < period; ++i) smallest[i] = size_bits(row + i);
  for (int64_t first = period; first < size; first += period) {
    const int64_t count = size - first < period ? size - first : period;
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t bits = size_bits(row + first + i);
      smallest[i] = bits < smallest[i] ? bits : smallest[i];
    }
  }
}

}  // namespace tl::TL_ISA
