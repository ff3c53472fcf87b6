// The greatest of many numbers, and where the first such one is.
#pragma once

#include <tokenloom/isa.h>

namespace tl {

struct Greatest {
  float value;
  int64_t index;
};

}  // namespace tl

// Of row[begin:end], which is not empty: the first greatest, or the first NaN where there is one.
TL_DECLARE_KERNEL(Greatest, greatest_of, (const float* row, int64_t begin, int64_t end))
