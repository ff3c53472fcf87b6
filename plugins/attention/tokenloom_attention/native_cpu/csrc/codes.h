// Products of an int8 cache as whole numbers, four to an instruction (VNNI): keys and values are multiplied as they are
// stored. What meets them is rounded to 16 bits, a scale for each row and chunk, and enters as two bytes: finer than
// bf16 holds it, and without a word being unpacked.
#pragma once

#include "chunk.h"

namespace tl::TL_ISA {
namespace {

#if TL_HAS_AVX512

// Sums are to stay in registers, so all loops over them must vanish.
#define TL_UNROLL _Pragma("GCC unroll 8")

constexpr int kLeftToSoftmax = 3;  // of four vectors, the one beside which no memory is asked for
constexpr float kMostQuery = 32512.0f;   // 127 * 256: high fits a signed byte after rounding
constexpr float kMostWeight = 65535.0f;

struct TwoSums {
  __m512i high, low;

  Floats value() const {
    return (Floats)_mm512_fmadd_ps(_mm512_cvtepi32_ps(high), _mm512_set1_ps(256.0f), _mm512_cvtepi32_ps(low));
  }
};

// sum + the dot products of four unsigned bytes and four signed ones; see low_bit's lanes.h on the intrinsic.
TL_INLINE void add_products(__m512i& sum, __m512i bytes, __m512i signed_bytes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "v"(signed_bytes));
}

TL_INLINE __m512i four_bytes(const char* from) {
  int32_t word;
  __builtin_memcpy(&word, from, sizeof word);
  return _mm512_set1_epi32(word);
}

// The largest size of numbers, whose bits without sign are in their order, with infinity and NaN last.
TL_INLINE __m512i larger_size(__m512i tops, Floats x) {
  return _mm512_max_epu32(tops, _mm512_and_si512((__m512i)x, _mm512_set1_epi32(0x7fffffff)));
}
TL_INLINE float as_size(__m512i tops) {
  const uint32_t bits = _mm512_reduce_max_epu32(tops);
  float size;
  __builtin_memcpy(&size, &bits, sizeof size);
  return size;
}

// The step between two codes, and its inverse. Numbers so small that the inverse would overflow count as zeros;
// infinities and NaN make the product NaN.
struct Grid {
  float step, factor;
};
TL_INLINE Grid grid_of(float top, float most) {
  if (!(top <= 3.4e38f)) return {__builtin_nanf(""), 0.0f};
  return top > 1e-30f ? Grid{top / most, most / top} : Grid{0.0f, 0.0f};
}

// source: fp32 [dim], which is overwritten by dim bytes `high` and as many `low`. dim is a multiple of 4.
QueryCodes round_query(float* source, int dim) {
  const auto part = [&](int d) { return static_cast<__mmask16>(dim - d < 16 ? (1u << (dim - d)) - 1 : 0xffff); };
  __m512i tops = _mm512_setzero_si512(), high_sums = tops, low_sums = tops;
  for (int d = 0; d < dim; d += 16) tops = larger_size(tops, (Floats)_mm512_maskz_loadu_ps(part(d), source + d));
  const Grid grid = grid_of(as_size(tops), kMostQuery);
  int8_t* const high = reinterpret_cast<int8_t*>(source);
  int8_t low[attention::kMaxInt8HeadDim];
  for (int d = 0; d < dim; d += 16) {  // what is stored lies before the numbers that are still to come
    const __m512 x = _mm512_mul_ps(_mm512_maskz_loadu_ps(part(d), source + d), _mm512_set1_ps(grid.factor));
    const __m512i codes = _mm512_maskz_cvtps_epi32(part(d), x);
    const __m512i upper = _mm512_srai_epi32(_mm512_add_epi32(codes, _mm512_set1_epi32(128)), 8);
    const __m512i lower = _mm512_sub_epi32(codes, _mm512_slli_epi32(upper, 8));
    high_sums = _mm512_add_epi32(high_sums, upper);
    low_sums = _mm512_add_epi32(low_sums, lower);
    _mm512_mask_cvtepi32_storeu_epi8(high + d, part(d), upper);
    _mm512_mask_cvtepi32_storeu_epi8(low + d, part(d), lower);
  }
  __builtin_memcpy(high + dim, low, static_cast<size_t>(dim));
  return {grid.step, -128 * _mm512_reduce_add_epi32(high_sums), -128 * _mm512_reduce_add_epi32(low_sums)};
}

// scores[r][0 : kVectors * kLanes] = query r . keys, for vectors of keys at tiles[...], whose words are `step` apart.
template <int kRows, int kVectors>
void score_codes(Rows query, const QueryCodes* of, int dim, const uint32_t* const* tiles, int64_t step, Rows scores,
                 Ahead& ahead) {
  TwoSums sums[kRows][kVectors];
  TL_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TL_UNROLL
    for (int j = 0; j < kVectors; ++j) {
      sums[r][j] = {_mm512_set1_epi32(of[r].high_start), _mm512_set1_epi32(of[r].low_start)};
    }
  }
  const __m512i unsign = _mm512_set1_epi8(-128);
  for (int i = 0; i < dim / 4; ++i) {
    __m512i keys[kVectors];
    TL_UNROLL
    for (int j = 0; j < kVectors; ++j) {
      keys[j] = _mm512_xor_si512(_mm512_loadu_si512(tiles[j] + i * step), unsign);
      if (j != kLeftToSoftmax) ahead.ask();
    }
    TL_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const __m512i high = four_bytes(query.row(r) + i * 4), low = four_bytes(query.row(r) + dim + i * 4);
      TL_UNROLL
      for (int j = 0; j < kVectors; ++j) {
        add_products(sums[r][j].high, keys[j], high);
        add_products(sums[r][j].low, keys[j], low);
      }
    }
  }
  TL_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TL_UNROLL
    for (int j = 0; j < kVectors; ++j) store(scores.floats(r) + j * kLanes, sums[r][j].value() * splat(of[r].scale));
  }
}

// Weights, fp32 [kChunk] and not negative, to kChunk bytes `high` and as many `low` in their place. Returns the scale.
float round_weights(float* weights, int count) {
  __m512i tops = _mm512_setzero_si512();
  for (int k = 0; k < count; k += kLanes) tops = larger_size(tops, load(weights + k));
  const Grid grid = grid_of(as_size(tops), kMostWeight);
  __m128i low[kChunk / kLanes];
  char* const bytes = reinterpret_cast<char*>(weights);
  for (int k = 0; k < count; k += kLanes) {
    const __m512i codes = _mm512_cvtps_epi32(_mm512_mul_ps((__m512)load(weights + k), _mm512_set1_ps(grid.factor)));
    low[k / kLanes] = _mm512_cvtepi32_epi8(codes);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes + k), _mm512_cvtepi32_epi8(_mm512_srli_epi32(codes, 8)));
  }
  for (int k = 0; k < count; k += kLanes) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes + kChunk + k), low[k / kLanes]);
  }
  return grid.step;
}

// out[r] = out[r] * factors[r] + scales[r] * (weights r . values), for kVectors vectors of columns. What a last word
// holds beyond the values that there are meets weights of 0.
template <int kRows, int kVectors>
void weigh_codes(Rows weights, const float* scales, const Runs& values, int64_t column, Rows out, const float* factors,
                 Ahead& ahead) {
  TwoSums sums[kRows][kVectors];
  TL_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TL_UNROLL
    for (int j = 0; j < kVectors; ++j) sums[r][j] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  }
  int64_t index = 0;
  for (int n = 0; n < values.num_runs; ++n) {
    const int count = values.runs[n].count + (n == values.num_runs - 1 && values.last_mask != 0);
    const uint32_t* words = values.runs[n].words + column;
    for (int i = 0; i < count; ++i, ++index, words += values.row_words) {
      __m512i stored[kVectors];
      TL_UNROLL
      for (int j = 0; j < kVectors; ++j) {
        stored[j] = _mm512_loadu_si512(words + j * kLanes);
        if (j != kLeftToSoftmax) ahead.ask();
      }
      TL_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const char* const own = weights.row(r) + index * 4;
        const __m512i high = four_bytes(own), low = four_bytes(own + kChunk);
        TL_UNROLL
        for (int j = 0; j < kVectors; ++j) {
          add_products(sums[r][j].high, high, stored[j]);
          add_products(sums[r][j].low, low, stored[j]);
        }
      }
    }
  }
  TL_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TL_UNROLL
    for (int j = 0; j < kVectors; ++j) {
      float* const target = out.floats(r) + column + j * kLanes;
      store(target, load(target) * splat(factors[r]) + sums[r][j].value() * splat(scales[r]));
    }
  }
}

// A body of for_row_groups that calls body.template run<rows, vectors>(first, vector) for all vectors; few rows take more
// of them at a time.
template <class Body>
struct AcrossVectors {
  const Body& body;
  int num_vectors;

  template <int kRows>
  void run(int first) const {
    constexpr int kVectors = kRows <= 3 ? 4 : 2;
    int vector = 0;
    for (; vector + kVectors <= num_vectors; vector += kVectors) body.template run<kRows, kVectors>(first, vector);
    for (; vector < num_vectors; ++vector) body.template run<kRows, 1>(first, vector);
  }
};

template <class Body>
void for_code_groups(int num_rows, int num_vectors, const Body& body) {
  for_row_groups(num_rows, AcrossVectors<Body>{body, num_vectors});
}

struct ScoreCodes {
  Rows query, scores;
  const QueryCodes* of;
  int dim;
  const uint32_t* const* tiles;
  int64_t step;
  Ahead& ahead;

  template <int kRows, int kVectors>
  void run(int first, int vector) const {
    score_codes<kRows, kVectors>({query.row(first), query.stride}, of + first, dim, tiles + vector, step,
                                 {scores.row(first) + vector * kLanes * 4, scores.stride}, ahead);
  }
};

struct WeighCodes {
  Rows weights, out;
  const float* scales;
  const Runs& values;
  const float* factors;
  Ahead& ahead;

  template <int kRows, int kVectors>
  void run(int first, int vector) const {
    weigh_codes<kRows, kVectors>({weights.row(first), weights.stride}, scales + first, values, vector * kLanes,
                                 {out.row(first), out.stride}, factors + first, ahead);
  }
};

#endif

}  // namespace
}  // namespace tl::TL_ISA
