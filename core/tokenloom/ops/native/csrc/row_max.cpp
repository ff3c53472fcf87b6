#include "row_max.h"

#include <tokenloom/vec.h>

#include <limits>

namespace tl::TL_ISA {
namespace {

constexpr int64_t kPiece = 1024;  // of a row: only the one that holds the greatest is searched for its place

// The greatest of `count` numbers that are not NaN, and whether there are any that are.
float top_of(const float* x, int64_t count, bool& has_nan) {
  constexpr float kLeast = -std::numeric_limits<float>::infinity();
  float top = kLeast;
  int64_t i = 0;
#if TL_HAS_AVX512
  Vec tops = Vec::all(kLeast);
  __mmask16 nans = 0;
  for (; i < count; i += Vec::kLanes) {
    const __mmask16 lanes = count - i < Vec::kLanes ? Vec::mask_of(count - i) : 0xffff;
    const Vec own{_mm512_mask_loadu_ps(tops.v, lanes, x + i)};
    nans |= _mm512_cmp_ps_mask(own.v, own.v, _CMP_UNORD_Q);
    tops = Vec::max(own, tops);  // the second where the first is NaN
  }
  has_nan = nans != 0;
  return tops.largest();
#elif TL_HAS_AVX2
  Vec tops = Vec::all(kLeast);
  __m256 nans = _mm256_setzero_ps();
  for (; i + Vec::kLanes <= count; i += Vec::kLanes) {
    const Vec own = Vec::load(x + i);
    nans = _mm256_or_ps(nans, _mm256_cmp_ps(own.v, own.v, _CMP_UNORD_Q));
    tops = Vec::max(own, tops);
  }
  has_nan = _mm256_movemask_ps(nans) != 0;
  top = tops.largest();
#else
  has_nan = false;
#endif
  for (; i < count; ++i) {
    has_nan |= x[i] != x[i];
    top = x[i] > top ? x[i] : top;
  }
  return top;
}

}  // namespace

Greatest greatest_of(const float* row, int64_t begin, int64_t end) {
  float best = 0.0f;
  int64_t found = -1;
  for (int64_t piece = begin; piece < end; piece += kPiece) {
    bool has_nan = false;
    const float top = top_of(row + piece, end - piece < kPiece ? end - piece : kPiece, has_nan);
    if (has_nan) {
      int64_t i = piece;
      while (row[i] == row[i]) ++i;
      return {row[i], i};
    }
    if (found < 0 || top > best) best = top, found = piece;
  }
  while (row[found] != best) ++found;
  return {row[found], found};
}

}  // namespace tl::TL_ISA
