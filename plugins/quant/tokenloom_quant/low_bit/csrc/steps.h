// One plane of weights times one plane of activations, for each form of these: the inner step of low_bit.cpp.
#pragma once

#include "lanes.h"
#include "low_bit.h"

// Sums are to stay in registers, so all loops over them must vanish.
#define TL_UNROLL _Pragma("GCC unroll 8")

namespace tl::TL_ISA {
namespace {

template <int kBits>
constexpr int kZero = kBits == 4 ? 8 : 128;
template <int kBits>
constexpr int kCodesPerPlane = kBits == 4 ? 8 : 4;

// How one plane is multiplied: by codes of activations, by fp32, and by pairs of bf16.
template <int kBits, Form kForm>
struct Step;

template <int kBits>
struct Step<kBits, Form::as_int8> {
  using Sum = Ints;
  using Value = int8_t;
  // The group's part of -zero * (sum of x).
  TL_INLINE static Ints start(const LowBitArgs& a, int64_t at) {
    if (a.weights.minima != nullptr) return Ints::all(0);
    return Ints::all(static_cast<const int32_t*>(a.rows.sums)[at]);
  }

  template <int kRows, int kVectors>
  TL_INLINE static void add(
      const uint8_t* const (&planes)[kVectors], const int8_t* const (&x)[kRows], int64_t plane, bool,
      Ints (&sums)[kRows][kVectors]) {
    TL_UNROLL
    for (int part = 0; part < (kBits == 4 ? 2 : 1); ++part) {
      Bytes codes[kVectors];
      TL_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        codes[v] = Bytes::load(planes[v] + plane * kPlaneBytes);
        if (kBits == 4) codes[v] = part == 0 ? codes[v].lower() : codes[v].upper();
      }
      TL_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const Bytes xs = Bytes::all(x[r] + plane * kCodesPerPlane<kBits> + 4 * part);
        TL_UNROLL
        for (int v = 0; v < kVectors; ++v) sums[r][v] = dot<kBits>(sums[r][v], codes[v], xs);
      }
    }
  }

  TL_INLINE static Vec result(Ints sum) { return sum.to_float(); }
  TL_INLINE static Vec sum_of_x(const LowBitArgs& a, int64_t at) {
    return Vec::all(static_cast<float>(static_cast<const int32_t*>(a.rows.sums)[at]));
  }
};

template <int kBits>
struct Step<kBits, Form::as_float> {
  using Sum = Vec;
  using Value = float;

  TL_INLINE static Vec start(const LowBitArgs&, int64_t) { return Vec::zero(); }

  template <int kRows, int kVectors>
  TL_INLINE static void add(
      const uint8_t* const (&planes)[kVectors], const float* const (&x)[kRows], int64_t plane, bool is_signed,
      Vec (&sums)[kRows][kVectors]) {
    const int zero = is_signed ? kZero<kBits> : 0;
    TL_UNROLL
    for (int k = 0; k < kCodesPerPlane<kBits>; ++k) {
      const int shift = kBits == 4 ? k % 2 * 16 + k / 2 * 4 : k * 8;
      Vec codes[kVectors];
      TL_UNROLL
      for (int v = 0; v < kVectors; ++v)
        codes[v] = Bytes::load(planes[v] + plane * kPlaneBytes).part(shift, (1 << kBits) - 1, zero);
      TL_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const Vec xs = Vec::all(x[r][plane * kCodesPerPlane<kBits> + k]);
        TL_UNROLL
        for (int v = 0; v < kVectors; ++v) sums[r][v] = Vec::fma(codes[v], xs, sums[r][v]);
      }
    }
  }

  TL_INLINE static Vec result(Vec sum) { return sum; }
  TL_INLINE static Vec sum_of_x(const LowBitArgs& a, int64_t at) {
    return Vec::all(static_cast<const float*>(a.rows.sums)[at]);
  }
};

#if TL_HAS_AVX512

// Codes less zero are small whole numbers, which bf16 holds exactly.
template <int kBits>
struct Step<kBits, Form::as_bf16> {
  using Sum = Vec;
  using Value = bf16;

  TL_INLINE static Vec start(const LowBitArgs&, int64_t) { return Vec::zero(); }

  // 0 to 15 less zero in bf16, twice: what lies above the four bits of an index does not matter.
  TL_INLINE static __m512i table(bool is_signed) {
    const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512 numbers = _mm512_cvtepi32_ps(_mm512_sub_epi32(low, _mm512_set1_epi32(is_signed ? 8 : 0)));
    const __m256i half = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(numbers), 16));
    return _mm512_broadcast_i64x4(half);
  }

  // The codes of k = 2 pair and 2 pair + 1.
  TL_INLINE static __m512i codes_of(__m512i plane, int pair, bool is_signed, __m512i numbers) {
    if constexpr (kBits == 4) {
      return _mm512_permutexvar_epi16(_mm512_srlv_epi32(plane, _mm512_set1_epi32(4 * pair)), numbers);
    } else {
      const Bytes bytes{plane};
      const Vec first = bytes.part(16 * pair, 255, is_signed ? 128 : 0);
      const Vec second = bytes.part(16 * pair + 8, 255, is_signed ? 128 : 0);
      return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(first.v), 16), _mm512_castps_si512(second.v));
    }
  }

  template <int kRows, int kVectors>
  TL_INLINE static void add(
      const uint8_t* const (&planes)[kVectors], const bf16* const (&x)[kRows], int64_t plane, bool is_signed,
      Vec (&sums)[kRows][kVectors]) {
    const __m512i numbers = table(is_signed);
    TL_UNROLL
    for (int pair = 0; pair < kCodesPerPlane<kBits> / 2; ++pair) {
      __m512bh codes[kVectors];
      TL_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const __m512i bytes = _mm512_loadu_si512(planes[v] + plane * kPlaneBytes);
        codes[v] = reinterpret_cast<__m512bh>(codes_of(bytes, pair, is_signed, numbers));
      }
      TL_UNROLL
      for (int r = 0; r < kRows; ++r) {
        int32_t both;
        std::memcpy(&both, x[r] + plane * kCodesPerPlane<kBits> + 2 * pair, sizeof both);
        const __m512bh xs = reinterpret_cast<__m512bh>(_mm512_set1_epi32(both));
        TL_UNROLL
        for (int v = 0; v < kVectors; ++v) sums[r][v].v = _mm512_dpbf16_ps(sums[r][v].v, codes[v], xs);
      }
    }
  }

  TL_INLINE static Vec result(Vec sum) { return sum; }
  TL_INLINE static Vec sum_of_x(const LowBitArgs& a, int64_t at) {
    return Vec::all(static_cast<const float*>(a.rows.sums)[at]);
  }
};

#endif

}  // namespace
}  // namespace tl::TL_ISA
