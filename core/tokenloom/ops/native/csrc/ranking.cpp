#include "ranking.h"

#include <algorithm>
#include <vector>

namespace tl {
namespace {

constexpr int64_t kPeriodsToWidth = 4;   // the more groups to a wanted number, the fewer others share one with it
constexpr int64_t kMostOfGroup = 64;

}  // namespace

// Places are dealt out to groups, of which each has a best number. At least `width` numbers are as good as the best of
// the width-th best group, so only groups that are as good hold wanted ones: a little more than there are wanted ones.
void rank_row(const float* row, int64_t size, int64_t width, int64_t* places, float* ranked) {
  thread_local std::vector<uint32_t> best, ordered;
  thread_local std::vector<uint64_t> keys;  // size bits above the place: all differ, and the better has the smaller one
  const int64_t wanted = std::max(kPeriodsToWidth * width, (size + kMostOfGroup - 1) / kMostOfGroup);
  const int64_t num_groups = std::min(size, wanted);
  best.resize(static_cast<size_t>(num_groups));
  smallest_sizes_kernel()(row, size, num_groups, best.data());
  ordered = best;
  std::nth_element(ordered.begin(), ordered.begin() + (width - 1), ordered.end());
  const uint32_t limit = ordered[static_cast<size_t>(width - 1)];
  keys.clear();
  for (int64_t group = 0; group < num_groups; ++group) {
    if (best[static_cast<size_t>(group)] > limit) continue;
    for (int64_t place = group; place < size; place += num_groups) {
      const uint32_t bits = size_bits(row + place);
      if (bits <= limit) keys.push_back(static_cast<uint64_t>(bits) << 32 | static_cast<uint64_t>(place));
    }
  }
  std::partial_sort(keys.begin(), keys.begin() + width, keys.end());
  for (int64_t i = 0; i < width; ++i) {
    const uint64_t key = keys[static_cast<size_t>(i)];
    const uint32_t bits = static_cast<uint32_t>(key >> 32) | 0x80000000u;
    places[i] = static_cast<int64_t>(key & 0xffffffffu);
    std::memcpy(ranked + i, &bits, sizeof bits);
  }
}

}  // namespace tl
