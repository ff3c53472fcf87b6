#include "unpack_row.h"

#include <c10/util/Half.h>

namespace tl {
namespace {

float number_at(const void* from, bool is_half, int64_t at) {
  return is_half ? static_cast<float>(static_cast<const c10::Half*>(from)[at]) : static_cast<const float*>(from)[at];
}

}  // namespace

void unpack_row(const LowBitWeights& w, int64_t index, float* to) {
  const int64_t panel = index / kPanel, place = index % kPanel, group_size = w.padded / w.num_groups;
  const uint8_t* bytes = w.codes + panel * w.num_planes() * kPlaneBytes + place * 4;
  const auto code_at = [&](int64_t k) {
    if (w.bits == 8) return bytes[k / 4 * kPlaneBytes + k % 4] & 255;
    const int64_t half = k % 2, shift = k % 8 / 2 * 4;  // see low_bit.h
    return bytes[k / 8 * kPlaneBytes + half * 2 + shift / 8] >> shift % 8 & 15;
  };
  for (int64_t group = 0; group < w.num_groups; ++group) {
    const int64_t at = (panel * w.num_groups + group) * kPanel + place;
    const float scale = number_at(w.scales, w.has_half_scales, at), zero = w.bits == 8 ? 128.0f : 8.0f;
    const float minimum = w.minima == nullptr ? 0.0f : number_at(w.minima, w.has_half_scales, at);
    const int64_t first = group * group_size, last = first + group_size;
    const int64_t end = last < w.in_features ? last : w.in_features;
    for (int64_t k = first; k < end; ++k) {
      const float code = static_cast<float>(code_at(k));
      to[k] = w.minima == nullptr ? (code - zero) * scale : code * scale + minimum;
    }
  }
}

}  // namespace tl
