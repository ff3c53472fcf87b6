#include "mass.h"

#include <tokenloom/vec.h>

namespace tl::TL_ISA {
namespace {

constexpr float kUnits = 0x1p40f;

int64_t sum_of_whole(Vec masses) {
#if TL_HAS_AVX512
  const __m512i low = _mm512_cvttps_epi64(_mm512_castps512_ps256(masses.v));
  const __m512i high = _mm512_cvttps_epi64(_mm512_extractf32x8_ps(masses.v, 1));
  return _mm512_reduce_add_epi64(_mm512_add_epi64(low, high));
#else
  float each[Vec::kLanes];
  masses.store(each);
  int64_t sum = 0;
  for (float mass : each) sum += static_cast<int64_t>(mass);
  return sum;
#endif
}

// NaN and what is below all numbers have no mass.
Vec masses_of(Vec scores) { return exp(Vec::max(scores, Vec::all(-104.0f))) * Vec::all(kUnits); }

}  // namespace

int64_t mass_of(const float* scores, int64_t size) {
  int64_t total = 0, i = 0;
  for (; i + Vec::kLanes <= size; i += Vec::kLanes) total += sum_of_whole(masses_of(Vec::load(scores + i)));
  if (i < size) {
    float rest[Vec::kLanes];
    for (int64_t j = 0; j < Vec::kLanes; ++j) rest[j] = i + j < size ? scores[i + j] : -104.0f;
    total += sum_of_whole(masses_of(Vec::load(rest)));
  }
  return total;
}

}  // namespace tl::TL_ISA
