// Lanes of 32 bits for kernel files: four bytes of codes each, or one integer. As many as `Vec` has.
#pragma once

#include <tokenloom/vec.h>

namespace tl::TL_ISA {

#if TL_HAS_AVX512

struct Ints {
  __m512i v;
  static Ints all(int32_t value) { return {_mm512_set1_epi32(value)}; }
  Vec to_float() const { return {_mm512_cvtepi32_ps(v)}; }
};

struct Bytes {
  __m512i v;
  static Bytes load(const uint8_t* from) { return {_mm512_loadu_si512(from)}; }
  static Bytes all(const int8_t* four) {
    int32_t word;
    std::memcpy(&word, four, sizeof word);
    return {_mm512_set1_epi32(word)};
  }
  Bytes lower() const { return {_mm512_and_si512(v, _mm512_set1_epi8(15))}; }
  Bytes upper() const { return {_mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(15))}; }
  // The bits from `shift` on of each lane that the mask has, less `zero`.
  Vec part(int shift, int mask, int zero) const {
    const __m512i bits = _mm512_and_si512(_mm512_srlv_epi32(v, _mm512_set1_epi32(shift)), _mm512_set1_epi32(mask));
    return {_mm512_cvtepi32_ps(_mm512_sub_epi32(bits, _mm512_set1_epi32(zero)))};
  }
};

// sum + the dot product of four unsigned codes, of 4 or 8 bits, and four signed ones; never saturates.
template <int kBits>
TL_INLINE Ints dot(Ints sum, Bytes codes, Bytes x) {
  // Not the intrinsic, around which GCC 12 copies each sum to another register and back.
  asm("vpdpbusd %2, %1, %0" : "+v"(sum.v) : "v"(codes.v), "v"(x.v));
  return sum;
}

TL_INLINE Vec load_half(const uint16_t* from) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
}

#elif TL_HAS_AVX2

struct Ints {
  __m256i v;
  static Ints all(int32_t value) { return {_mm256_set1_epi32(value)}; }
  Vec to_float() const { return {_mm256_cvtepi32_ps(v)}; }
};

struct Bytes {
  __m256i v;
  static Bytes load(const uint8_t* from) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))}; }
  static Bytes all(const int8_t* four) {
    int32_t word;
    std::memcpy(&word, four, sizeof word);
    return {_mm256_set1_epi32(word)};
  }
  Bytes lower() const { return {_mm256_and_si256(v, _mm256_set1_epi8(15))}; }
  Bytes upper() const { return {_mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(15))}; }
  Vec part(int shift, int mask, int zero) const {
    const __m256i bits = _mm256_and_si256(_mm256_srlv_epi32(v, _mm256_set1_epi32(shift)), _mm256_set1_epi32(mask));
    return {_mm256_cvtepi32_ps(_mm256_sub_epi32(bits, _mm256_set1_epi32(zero)))};
  }
};

// Products of pairs have 16 bits in the short form, which is enough for codes of 4 bits only.
template <int kBits>
TL_INLINE Ints dot(Ints sum, Bytes codes, Bytes x) {
  if constexpr (kBits == 4) {
    const __m256i pairs = _mm256_maddubs_epi16(codes.v, x.v);
    return {_mm256_add_epi32(sum.v, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))};
  } else {
    const __m256i even = _mm256_and_si256(codes.v, _mm256_set1_epi16(255)), odd = _mm256_srli_epi16(codes.v, 8);
    const __m256i x_even = _mm256_srai_epi16(_mm256_slli_epi16(x.v, 8), 8), x_odd = _mm256_srai_epi16(x.v, 8);
    const __m256i both = _mm256_add_epi32(_mm256_madd_epi16(even, x_even), _mm256_madd_epi16(odd, x_odd));
    return {_mm256_add_epi32(sum.v, both)};
  }
}

TL_INLINE Vec load_half(const uint16_t* from) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))};
}

#else

struct Ints {
  int32_t v[Vec::kLanes];
  static Ints all(int32_t value) {
    Ints result;
    for (int32_t& lane : result.v) lane = value;
    return result;
  }
  Vec to_float() const {
    return Vec::make([&](int i) { return static_cast<float>(v[i]); });
  }
};

struct Bytes {
  uint8_t v[Vec::kLanes * 4];

  template <class F>
  static Bytes make(const F& byte) {
    Bytes result;
    for (int i = 0; i < Vec::kLanes * 4; ++i) result.v[i] = byte(i);
    return result;
  }
  static Bytes load(const uint8_t* from) {
    return make([=](int i) { return from[i]; });
  }
  static Bytes all(const int8_t* four) {
    return make([=](int i) { return static_cast<uint8_t>(four[i % 4]); });
  }
  Bytes lower() const {
    return make([&](int i) { return static_cast<uint8_t>(v[i] & 15); });
  }
  Bytes upper() const {
    return make([&](int i) { return static_cast<uint8_t>(v[i] >> 4); });
  }
  Vec part(int shift, int mask, int zero) const {
    return Vec::make([&](int i) {
      const int byte = v[4 * i + shift / 8];  // no part reaches over a byte
      return static_cast<float>(((byte >> (shift % 8)) & mask) - zero);
    });
  }
};

template <int kBits>
TL_INLINE Ints dot(Ints sum, const Bytes& codes, const Bytes& x) {
  for (int i = 0; i < Vec::kLanes; ++i)
    for (int b = 0; b < 4; ++b) sum.v[i] += codes.v[4 * i + b] * static_cast<int8_t>(x.v[4 * i + b]);
  return sum;
}

TL_INLINE float half_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, exponent = (bits >> 10) & 31u;
  const uint32_t fraction = bits & 1023u;
  float value;
  if (exponent == 0) {  // zero, or below the normal range
    value = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  const uint32_t wide = sign | ((exponent == 31 ? 255u : exponent + 112u) << 23) | (fraction << 13);
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

TL_INLINE Vec load_half(const uint16_t* from) {
  return Vec::make([=](int i) { return half_to_float(from[i]); });
}

#endif

}  // namespace tl::TL_ISA
