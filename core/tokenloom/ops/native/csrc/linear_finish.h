// The end of a linear product: what becomes of fp32 sums.
#pragma once

#include "linear.h"

namespace tl::TL_ISA {

// Adds the bias to a vector of one row of a panel, and writes what of it is within N.
static inline void finish(const LinearArgs& a, int64_t row, int64_t panel, int64_t offset, Vec sum) {
  const int64_t column = panel * kPanel + offset;
  const int64_t count = a.out_features - column;
  if (count <= 0) return;
  const int64_t at = row * a.y_stride + column;
  if (count >= Vec::kLanes) {
    if (a.bias != nullptr) sum = sum + Vec::load(a.bias + column);
    a.y != nullptr ? sum.store(a.y + at) : sum.store(a.y_fp32 + at);
  } else {
    if (a.bias != nullptr) sum = sum + Vec::load_part(a.bias + column, count);
    a.y != nullptr ? sum.store_part(a.y + at, count) : sum.store_part(a.y_fp32 + at, count);
  }
}

}  // namespace tl::TL_ISA
