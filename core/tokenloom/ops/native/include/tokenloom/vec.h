// Vectors of fp32 for kernel files, one width per level of instructions; memory may hold fp32 or bf16.
//
// Vec::kLanes elements at a time; load_part and store_part touch only the first `count`, the other lanes are 0.
#pragma once

#include <tokenloom/isa.h>

#include <cmath>

#if TL_X86
#include <immintrin.h>
#endif

namespace tl {

// The storage of torch's bfloat16.
struct bf16 {
  uint16_t bits;
};

}  // namespace tl

namespace tl::TL_ISA {

static inline float to_float(float value) { return value; }

static inline float to_float(bf16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

// To the nearest, ties to even; NaN stays NaN.
static inline bf16 to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

#if TL_HAS_AVX512

struct Vec {
  static constexpr int kLanes = 16;
  __m512 v;

  static __mmask16 mask_of(int64_t count) { return static_cast<__mmask16>((1u << count) - 1u); }
  static __m512 widen(__m256i half) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  static __m256i narrow(__m512 value) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value)); }

  static Vec zero() { return {_mm512_setzero_ps()}; }
  static Vec all(float value) { return {_mm512_set1_ps(value)}; }
  static Vec load(const float* from) { return {_mm512_loadu_ps(from)}; }
  static Vec load(const bf16* from) { return {widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))}; }
  static Vec load_part(const float* from, int64_t count) { return {_mm512_maskz_loadu_ps(mask_of(count), from)}; }
  static Vec load_part(const bf16* from, int64_t count) {
    return {widen(_mm256_maskz_loadu_epi16(mask_of(count), from))};
  }
  void store(float* to) const { _mm512_storeu_ps(to, v); }
  void store(bf16* to) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), narrow(v)); }
  void store_part(float* to, int64_t count) const { _mm512_mask_storeu_ps(to, mask_of(count), v); }
  void store_part(bf16* to, int64_t count) const { _mm256_mask_storeu_epi16(to, mask_of(count), narrow(v)); }

  friend Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
  friend Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
  friend Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
  friend Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
  // a * b + c
  static Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  // The second operand where either is NaN, as the instruction has it.
  static Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
  static Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
  static Vec round(Vec a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
  // a * 2^n, n a whole number
  static Vec scale(Vec a, Vec n) { return {_mm512_scalef_ps(a.v, n.v)}; }
  float sum() const { return _mm512_reduce_add_ps(v); }
  float largest() const { return _mm512_reduce_max_ps(v); }
};

#elif TL_HAS_AVX2

struct Vec {
  static constexpr int kLanes = 8;
  __m256 v;

  static __m256i mask_of(int64_t count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static __m256 widen(__m128i half) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
  static __m128i narrow(__m256 value) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    const __m256i words = _mm256_blendv_epi8(rounded, quiet, is_nan);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 0xd8);
    return _mm256_castsi256_si128(packed);
  }

  static Vec zero() { return {_mm256_setzero_ps()}; }
  static Vec all(float value) { return {_mm256_set1_ps(value)}; }
  static Vec load(const float* from) { return {_mm256_loadu_ps(from)}; }
  static Vec load(const bf16* from) { return {widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))}; }
  static Vec load_part(const float* from, int64_t count) { return {_mm256_maskload_ps(from, mask_of(count))}; }
  static Vec load_part(const bf16* from, int64_t count) {
    bf16 copy[kLanes] = {};
    std::memcpy(copy, from, static_cast<size_t>(count) * sizeof(bf16));
    return load(copy);
  }
  void store(float* to) const { _mm256_storeu_ps(to, v); }
  void store(bf16* to) const { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), narrow(v)); }
  void store_part(float* to, int64_t count) const { _mm256_maskstore_ps(to, mask_of(count), v); }
  void store_part(bf16* to, int64_t count) const {
    bf16 copy[kLanes];
    store(copy);
    std::memcpy(to, copy, static_cast<size_t>(count) * sizeof(bf16));
  }

  friend Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
  friend Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
  friend Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
  friend Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
  static Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
  static Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
  static Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
  static Vec round(Vec a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
  static Vec scale(Vec a, Vec n) {
    // In two steps, so that results below the normal range come out right.
    const __m256i whole = _mm256_cvtps_epi32(n.v);
    const __m256i half = _mm256_srai_epi32(whole, 1);
    const auto power = [](__m256i e) {
      return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23));
    };
    return {_mm256_mul_ps(_mm256_mul_ps(a.v, power(half)), power(_mm256_sub_epi32(whole, half)))};
  }
  float sum() const {
    __m128 low = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    low = _mm_add_ps(low, _mm_movehl_ps(low, low));
    return _mm_cvtss_f32(_mm_add_ss(low, _mm_movehdup_ps(low)));
  }
  float largest() const {
    __m128 low = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    low = _mm_max_ps(low, _mm_movehl_ps(low, low));
    return _mm_cvtss_f32(_mm_max_ss(low, _mm_movehdup_ps(low)));
  }
};

#else

// Short loops, which compilers turn into whatever vectors there are.
struct Vec {
  static constexpr int kLanes = 8;
  float v[kLanes];

  template <class F>
  static Vec make(const F& element) {
    Vec result;
    for (int i = 0; i < kLanes; ++i) result.v[i] = element(i);
    return result;
  }

  static Vec zero() { return all(0.0f); }
  static Vec all(float value) {
    return make([=](int) { return value; });
  }
  template <class T>
  static Vec load(const T* from) {
    return make([=](int i) { return to_float(from[i]); });
  }
  template <class T>
  static Vec load_part(const T* from, int64_t count) {
    return make([=](int i) { return i < count ? to_float(from[i]) : 0.0f; });
  }
  void store(float* to) const { std::memcpy(to, v, sizeof v); }
  void store(bf16* to) const { store_part(to, kLanes); }
  void store_part(float* to, int64_t count) const { std::memcpy(to, v, static_cast<size_t>(count) * sizeof(float)); }
  void store_part(bf16* to, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) to[i] = to_bf16(v[i]);
  }

  friend Vec operator+(const Vec& a, const Vec& b) {
    return make([&](int i) { return a.v[i] + b.v[i]; });
  }
  friend Vec operator-(const Vec& a, const Vec& b) {
    return make([&](int i) { return a.v[i] - b.v[i]; });
  }
  friend Vec operator*(const Vec& a, const Vec& b) {
    return make([&](int i) { return a.v[i] * b.v[i]; });
  }
  friend Vec operator/(const Vec& a, const Vec& b) {
    return make([&](int i) { return a.v[i] / b.v[i]; });
  }
  static Vec fma(const Vec& a, const Vec& b, const Vec& c) {
    return make([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
  }
  static Vec max(const Vec& a, const Vec& b) {
    return make([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  static Vec min(const Vec& a, const Vec& b) {
    return make([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
  }
  static Vec round(const Vec& a) {
    return make([&](int i) { return std::nearbyintf(a.v[i]); });
  }
  static Vec scale(const Vec& a, const Vec& n) {
    return make([&](int i) { return std::ldexp(a.v[i], static_cast<int>(n.v[i])); });
  }
  float sum() const {
    float total = 0.0f;
    for (float element : v) total += element;
    return total;
  }
  float largest() const {
    float result = v[0];
    for (float element : v) result = element > result ? element : result;
    return result;
  }
};

#endif

// e^x to about one unit in the last place; 0 below -104, infinity above 89. NaN gives NaN.
// The range is reduced to |r| <= ln(2) / 2, where a polynomial of degree 6 will do.
static inline Vec exp(Vec x) {
  const Vec clamped = Vec::max(Vec::all(-104.0f), Vec::min(Vec::all(89.0f), x));  // NaN passes as second operand
  const Vec n = Vec::round(clamped * Vec::all(1.44269504f));
  Vec r = Vec::fma(n, Vec::all(-0.693359375f), clamped);
  r = Vec::fma(n, Vec::all(2.12194440e-4f), r);
  Vec p = Vec::all(1.9875691500e-4f);
  p = Vec::fma(p, r, Vec::all(1.3981999507e-3f));
  p = Vec::fma(p, r, Vec::all(8.3334519073e-3f));
  p = Vec::fma(p, r, Vec::all(4.1665795894e-2f));
  p = Vec::fma(p, r, Vec::all(1.6666665459e-1f));
  p = Vec::fma(p, r, Vec::all(5.0000001201e-1f));
  p = Vec::fma(p, r * r, r + Vec::all(1.0f));
  return Vec::scale(p, n);
}

}  // namespace tl::TL_ISA
