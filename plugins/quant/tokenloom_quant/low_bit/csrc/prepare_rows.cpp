#include <cmath>
#include <limits>

#include "low_bit.h"

namespace tl::TL_ISA {
namespace {

constexpr float kMaxCode = 127.0f;
// Below it, 127 / x leaves the range of fp32; such groups count as zeros.
constexpr float kSmallest = 1e-30f;
// Which of each eight codes comes first, second, ...: see the layout of 4 bits in low_bit.h.
constexpr int kOrder[kBlock] = {0, 4, 1, 5, 2, 6, 3, 7};

template <class T>
void widen(const T* x, int64_t size, int64_t padded, float* to) {
  int64_t i = 0;
  for (; i + Vec::kLanes <= size; i += Vec::kLanes) Vec::load(x + i).store(to + i);
  for (; i < size; ++i) to[i] = to_float(x[i]);
  for (; i < padded; ++i) to[i] = 0.0f;
}

// Bits of numbers without sign are in the order of the numbers, with infinity and NaN last.
float largest_of(const float* x, int64_t size) {
  uint32_t most = 0;
#if TL_HAS_AVX512
  __m512i lanes = _mm512_setzero_si512();
  for (int64_t i = 0; i < size; i += 16) {
    const __m512i bits = _mm512_maskz_loadu_epi32(size - i < 16 ? 0x00ff : 0xffff, x + i);  // size is a multiple of 8
    lanes = _mm512_max_epu32(lanes, _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)));
  }
  most = _mm512_reduce_max_epu32(lanes);
#else
  for (int64_t i = 0; i < size; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    bits &= 0x7fffffffu;
    most = bits > most ? bits : most;
  }
#endif
  float largest;
  std::memcpy(&largest, &most, sizeof largest);
  return largest;
}

// Rounds size numbers, a multiple of 8, to codes; returns the sum of these.
int32_t round_group(const float* x, int64_t size, float factor, bool is_ordered, int8_t* to) {
#if TL_HAS_AVX512
  const __m128i order = is_ordered ? _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15)
                                   : _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __m512i sums = _mm512_setzero_si512();
  for (int64_t i = 0; i < size; i += 16) {
    const __mmask16 mask = size - i < 16 ? 0x00ff : 0xffff;
    const __m512i codes = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), _mm512_set1_ps(factor)));
    sums = _mm512_add_epi32(sums, codes);
    _mm_mask_storeu_epi8(to + i, mask, _mm_shuffle_epi8(_mm512_cvtsepi32_epi8(codes), order));
  }
  return _mm512_reduce_add_epi32(sums);
#else
  int32_t sum = 0;
  for (int64_t i = 0; i < size; i += kBlock) {
    int32_t codes[kBlock];
    for (int j = 0; j < kBlock; ++j) codes[j] = static_cast<int32_t>(std::nearbyintf(x[i + j] * factor));
    for (int j = 0; j < kBlock; ++j) {
      sum += codes[j];
      to[i + j] = static_cast<int8_t>(codes[is_ordered ? kOrder[j] : j]);
    }
  }
  return sum;
#endif
}

void round_row(const LowBitWeights& w, const LowBitRows& rows, int64_t row, const float* wide) {
  const int64_t size = w.row_group_size();
  int8_t* codes = static_cast<int8_t*>(rows.values) + row * rows.values_stride;
  int32_t* sums = static_cast<int32_t*>(rows.sums) + row * w.num_row_groups;
  float* scales = rows.scales + row * w.num_row_groups;
  const int32_t times = w.minima != nullptr ? 1 : w.bits == 4 ? -8 : -128;
  float total = 0.0f;
  for (int64_t g = 0; g < w.num_row_groups; ++g) {
    const float largest = largest_of(wide + g * size, size);
    const bool is_finite = largest <= std::numeric_limits<float>::max(), is_zero = largest < kSmallest;
    const float factor = is_finite && !is_zero ? kMaxCode / largest : 0.0f;
    scales[g] = is_finite ? (is_zero ? 0.0f : largest / kMaxCode) : std::numeric_limits<float>::quiet_NaN();
    if (factor == 0.0f) {
      std::memset(codes + g * size, 0, static_cast<size_t>(size));
      sums[g] = 0;
    } else {
      const int32_t sum = round_group(wide + g * size, size, factor, w.bits == 4, codes + g * size);
      total += scales[g] * static_cast<float>(sum);
      sums[g] = times * sum;
    }
  }
  rows.row_sums[row] = total;
}

void sum_row(const LowBitWeights& w, const LowBitRows& rows, int64_t row, const float* wide) {
  const int64_t size = w.row_group_size();
  float* sums = static_cast<float*>(rows.sums) + row * w.num_row_groups;
  for (int64_t g = 0; g < w.num_row_groups; ++g) {
    Vec sum = Vec::zero();
    int64_t i = 0;
    for (; i + Vec::kLanes <= size; i += Vec::kLanes) sum = sum + Vec::load(wide + g * size + i);
    sums[g] = sum.sum();
    for (; i < size; ++i) sums[g] += wide[g * size + i];
  }
}

}  // namespace

void prepare_rows(const LowBitWeights& weights, const LowBitRows& rows, int64_t first, int64_t end, float* wide) {
  for (int64_t row = first; row < end; ++row) {
    float* to = rows.form == Form::as_float ? static_cast<float*>(rows.values) + row * rows.values_stride : wide;
    const bf16* half = static_cast<const bf16*>(rows.x) + row * rows.x_stride;
    const float* full = static_cast<const float*>(rows.x) + row * rows.x_stride;
    if (rows.form == Form::as_bf16 && rows.values != rows.x) {
      bf16* copy = static_cast<bf16*>(rows.values) + row * rows.values_stride;
      std::memcpy(copy, half, static_cast<size_t>(weights.in_features) * sizeof(bf16));
      const int64_t missing = weights.padded - weights.in_features;
      std::memset(copy + weights.in_features, 0, static_cast<size_t>(missing) * sizeof(bf16));
    }
    if (rows.form == Form::as_bf16 && rows.sums == nullptr) continue;
    rows.is_half ? widen(half, weights.in_features, weights.padded, to)
                 : widen(full, weights.in_features, weights.padded, to);
    if (rows.form == Form::as_int8) {
      round_row(weights, rows, row, wide);
    } else if (rows.sums != nullptr) {
      sum_row(weights, rows, row, to);
    }
  }
}

}  // namespace tl::TL_ISA
