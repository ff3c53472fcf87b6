// Philox4x32-10 for four neighbouring tokens a lane, and fp32 noise from its words; see `tokenloom.sampling.noise`.
#pragma once

#include <tokenloom/vec.h>

#include "draw.h"

namespace tl::TL_ISA {
namespace {

// 32-bit words side by side, as many as a Vec has lanes.
#if TL_HAS_AVX512

struct Words {
  __m512i v;

  static Words all(uint32_t word) { return {_mm512_set1_epi32(static_cast<int>(word))}; }
  static Words load(const uint32_t* from) { return {_mm512_loadu_si512(from)}; }
  friend Words operator+(Words a, Words b) { return {_mm512_add_epi32(a.v, b.v)}; }
  friend Words operator^(Words a, Words b) { return {_mm512_xor_si512(a.v, b.v)}; }
  friend Words operator&(Words a, Words b) { return {_mm512_and_si512(a.v, b.v)}; }
  Words upper_half() const { return {_mm512_srli_epi32(v, 16)}; }
  Vec to_float() const { return {_mm512_cvtepi32_ps(v)}; }  // below 2^31
  // Both words of the products with a factor.
  void multiply(uint32_t factor, Words& high, Words& low) const {
    const __m512i by = _mm512_set1_epi32(static_cast<int>(factor));
    const __m512i even = _mm512_mul_epu32(v, by), odd = _mm512_mul_epu32(_mm512_srli_epi64(v, 32), by);
    high.v = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
    low.v = _mm512_mullo_epi32(v, by);
  }
  // Columns to rows in each four by four words of four vectors.
  static void transpose(Words (&w)[4]) {
    const __m512i a = _mm512_unpacklo_epi32(w[0].v, w[1].v), b = _mm512_unpackhi_epi32(w[0].v, w[1].v);
    const __m512i c = _mm512_unpacklo_epi32(w[2].v, w[3].v), d = _mm512_unpackhi_epi32(w[2].v, w[3].v);
    w[0].v = _mm512_unpacklo_epi64(a, c);
    w[1].v = _mm512_unpackhi_epi64(a, c);
    w[2].v = _mm512_unpacklo_epi64(b, d);
    w[3].v = _mm512_unpackhi_epi64(b, d);
  }
};

#elif TL_HAS_AVX2

struct Words {
  __m256i v;

  static Words all(uint32_t word) { return {_mm256_set1_epi32(static_cast<int>(word))}; }
  static Words load(const uint32_t* from) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))}; }
  friend Words operator+(Words a, Words b) { return {_mm256_add_epi32(a.v, b.v)}; }
  friend Words operator^(Words a, Words b) { return {_mm256_xor_si256(a.v, b.v)}; }
  friend Words operator&(Words a, Words b) { return {_mm256_and_si256(a.v, b.v)}; }
  Words upper_half() const { return {_mm256_srli_epi32(v, 16)}; }
  Vec to_float() const { return {_mm256_cvtepi32_ps(v)}; }
  void multiply(uint32_t factor, Words& high, Words& low) const {
    const __m256i by = _mm256_set1_epi32(static_cast<int>(factor));
    const __m256i even = _mm256_mul_epu32(v, by), odd = _mm256_mul_epu32(_mm256_srli_epi64(v, 32), by);
    high.v = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
    low.v = _mm256_mullo_epi32(v, by);
  }
  static void transpose(Words (&w)[4]) {
    const __m256i a = _mm256_unpacklo_epi32(w[0].v, w[1].v), b = _mm256_unpackhi_epi32(w[0].v, w[1].v);
    const __m256i c = _mm256_unpacklo_epi32(w[2].v, w[3].v), d = _mm256_unpackhi_epi32(w[2].v, w[3].v);
    w[0].v = _mm256_unpacklo_epi64(a, c);
    w[1].v = _mm256_unpackhi_epi64(a, c);
    w[2].v = _mm256_unpacklo_epi64(b, d);
    w[3].v = _mm256_unpackhi_epi64(b, d);
  }
};

#else

struct Words {
  uint32_t v[Vec::kLanes];

  template <class F>
  static Words make(const F& element) {
    Words result;
    for (int i = 0; i < Vec::kLanes; ++i) result.v[i] = element(i);
    return result;
  }

  static Words all(uint32_t word) {
    return make([=](int) { return word; });
  }
  static Words load(const uint32_t* from) {
    return make([=](int i) { return from[i]; });
  }
  friend Words operator+(const Words& a, const Words& b) {
    return make([&](int i) { return a.v[i] + b.v[i]; });
  }
  friend Words operator^(const Words& a, const Words& b) {
    return make([&](int i) { return a.v[i] ^ b.v[i]; });
  }
  friend Words operator&(const Words& a, const Words& b) {
    return make([&](int i) { return a.v[i] & b.v[i]; });
  }
  Words upper_half() const {
    return make([&](int i) { return v[i] >> 16; });
  }
  Vec to_float() const {
    return Vec::make([&](int i) { return static_cast<float>(v[i]); });
  }
  void multiply(uint32_t factor, Words& high, Words& low) const {
    const Words from = *this;
    for (int i = 0; i < Vec::kLanes; ++i) {
      const uint64_t product = uint64_t{from.v[i]} * factor;
      high.v[i] = static_cast<uint32_t>(product >> 32);
      low.v[i] = static_cast<uint32_t>(product);
    }
  }
  static void transpose(Words (&w)[4]) {
    for (int first = 0; first < Vec::kLanes; first += 4) {
      for (int i = 0; i < 4; ++i) {
        for (int j = i + 1; j < 4; ++j) {
          const uint32_t kept = w[i].v[first + j];
          w[i].v[first + j] = w[j].v[first + i];
          w[j].v[first + i] = kept;
        }
      }
    }
  }
};

#endif

// Natural logarithm of positive normal numbers, to about one unit in the last place: x = 2^e m, m near 1, and a
// polynomial of m - 1.
TL_INLINE Vec log_of(Vec x) {
  constexpr float kRootHalf = 0.70710678f;
#if TL_HAS_AVX512
  __m512 m = _mm512_getmant_ps(x.v, _MM_MANT_NORM_p5_1, _MM_MANT_SIGN_zero);
  __m512 e = _mm512_add_ps(_mm512_getexp_ps(x.v), _mm512_set1_ps(1.0f));
  const __mmask16 is_low = _mm512_cmp_ps_mask(m, _mm512_set1_ps(kRootHalf), _CMP_LT_OQ);
  m = _mm512_mask_add_ps(m, is_low, m, m);
  e = _mm512_mask_sub_ps(e, is_low, e, _mm512_set1_ps(1.0f));
  const Vec own{m}, exponent{e};
#elif TL_HAS_AVX2
  const __m256i bits = _mm256_castps_si256(x.v);
  __m256 m = _mm256_castsi256_ps(_mm256_or_si256(_mm256_and_si256(bits, _mm256_set1_epi32(0x007fffff)),
                                                 _mm256_set1_epi32(0x3f000000)));
  __m256 e = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(bits, 23), _mm256_set1_epi32(126)));
  const __m256 is_low = _mm256_cmp_ps(m, _mm256_set1_ps(kRootHalf), _CMP_LT_OQ);
  m = _mm256_add_ps(m, _mm256_and_ps(is_low, m));
  e = _mm256_sub_ps(e, _mm256_and_ps(is_low, _mm256_set1_ps(1.0f)));
  const Vec own{m}, exponent{e};
#else
  Vec own, exponent;
  for (int i = 0; i < Vec::kLanes; ++i) {
    int e;
    float m = std::frexp(x.v[i], &e);
    if (m < kRootHalf) m += m, --e;
    own.v[i] = m, exponent.v[i] = static_cast<float>(e);
  }
#endif
  const Vec r = own - Vec::all(1.0f), square = r * r;
  Vec p = Vec::all(7.0376836292e-2f);
  p = Vec::fma(p, r, Vec::all(-1.1514610310e-1f));
  p = Vec::fma(p, r, Vec::all(1.1676998740e-1f));
  p = Vec::fma(p, r, Vec::all(-1.2420140846e-1f));
  p = Vec::fma(p, r, Vec::all(1.4249322787e-1f));
  p = Vec::fma(p, r, Vec::all(-1.6668057665e-1f));
  p = Vec::fma(p, r, Vec::all(2.0000714765e-1f));
  p = Vec::fma(p, r, Vec::all(-2.4999993993e-1f));
  p = Vec::fma(p, r, Vec::all(3.3333331174e-1f));
  // ln(2) in two parts: the first has few bits, so that its multiples are exact.
  Vec y = Vec::fma(exponent, Vec::all(-2.12194440e-4f), p * r * square);
  y = Vec::fma(square, Vec::all(-0.5f), y);
  return Vec::fma(exponent, Vec::all(0.693359375f), r + y);
}

// Words to Gumbel numbers. u = (2 w + 1) 2^-33, rounded once: its halves are exact, and fma rounds their sum.
TL_INLINE Vec gumbel_of(Words words) {
  const Vec lower = ((words & Words::all(0xffff)) + (words & Words::all(0xffff)) + Words::all(1)).to_float();
  const Vec most = Vec::all(1.0f - 0x1p-24f);
  const Vec u = Vec::min(Vec::fma(words.upper_half().to_float(), Vec::all(0x1p17f), lower) * Vec::all(0x1p-33f), most);
  // -log1p(-u): the logarithm of 1 - u as it was rounded, times what that rounding did to u. Up to 2^-25, u vanishes
  // beside 1, and is the result.
  const Vec rest = Vec::all(1.0f) - u, taken = Vec::all(1.0f) - rest, tiny = Vec::all(0x1p-60f);
  const Vec ratio = u / Vec::max(taken, tiny);
  const Vec by_log = (Vec::zero() - log_of(rest)) * ratio;
  return Vec::zero() - log_of(Vec::max(by_log, Vec::min(u, Vec::all(0x1p-25f))));
}

// The noise of 4 * Vec::kLanes tokens from `first` on, a multiple of 4.
TL_INLINE void gumbel_noise(const NoiseKey& key, int64_t first, Vec (&noise)[4]) {
  constexpr int kFours = Vec::kLanes / 4;
  uint32_t blocks[Vec::kLanes];  // lanes in the order that the transposition makes neighbours of
  for (int i = 0; i < Vec::kLanes; ++i) blocks[i] = static_cast<uint32_t>(first / 4 + i % 4 * kFours + i / 4);
  Words c[4] = {Words::all(key.choice), Words::all(key.position), Words::all(key.purpose), Words::load(blocks)};
  uint32_t k0 = key.seed_low, k1 = key.seed_high;
  for (int round = 0; round < 10; ++round) {
    Words high0, low0, high1, low1;
    c[0].multiply(0xD2511F53u, high0, low0);
    c[2].multiply(0xCD9E8D57u, high1, low1);
    c[0] = high1 ^ c[1] ^ Words::all(k0);
    c[2] = high0 ^ c[3] ^ Words::all(k1);
    c[1] = low1;
    c[3] = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  Words::transpose(c);
  for (int i = 0; i < 4; ++i) noise[i] = gumbel_of(c[i]);
}

}  // namespace
}  // namespace tl::TL_ISA
