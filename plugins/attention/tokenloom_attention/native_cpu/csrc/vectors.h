// Vectors of the level of instructions that this file is compiled for, with the functions that attention needs.
#pragma once

#include <tokenloom/isa.h>

#if TL_HAS_AVX512
#include <immintrin.h>
#endif

namespace tl::TL_ISA {
namespace {

#if TL_HAS_AVX512
constexpr int kLanes = 16;
#elif TL_HAS_AVX2
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));

inline Floats load(const float* source) {
  Floats v;
  __builtin_memcpy(&v, source, sizeof v);
  return v;
}
inline Words load(const uint32_t* source) {
  Words v;
  __builtin_memcpy(&v, source, sizeof v);
  return v;
}
inline void store(float* target, Floats v) { __builtin_memcpy(target, &v, sizeof v); }

inline Floats splat(float x) { return x - Floats{}; }
inline Ints splat(int32_t x) { return x - Ints{}; }
inline Floats as_floats(Words v) { return (Floats)v; }

inline Ints lane_numbers() {
  Ints v{};
  for (int i = 0; i < kLanes; ++i) v[i] = i;
  return v;
}

// Where one of both is NaN, the second is taken, as the processor's own instructions do.
inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }
inline Floats smaller(Floats a, Floats b) { return a < b ? a : b; }

#if TL_HAS_AVX512
inline float largest(Floats v) { return _mm512_reduce_max_ps((__m512)v); }
inline float sum(Floats v) { return _mm512_reduce_add_ps((__m512)v); }
#else
inline float largest(Floats v) {
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) v[i] = v[i + width] > v[i] ? v[i + width] : v[i];
  }
  return v[0];
}
inline float sum(Floats v) {
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) v[i] += v[i + width];
  }
  return v[0];
}
#endif

// x = n ln 2 + r with |r| <= ln 2 / 2: gives 2^n and e^r - 1 (Cody and Waite's reduction, a Taylor polynomial).
struct ExpParts {
  Floats power, rest;
};
inline ExpParts exp_parts(Floats x) {
  const Floats shift = splat(0x1.8p23f);  // adding it rounds to an integer, which is then in the low bits
  const Floats shifted = x * splat(1.44269504f) + shift;
  const Floats n = shifted - shift;
  const Floats r = x - n * splat(0.693359375f) - n * splat(-2.12194440e-4f);
  Floats p = r * splat(1.0f / 720) + splat(1.0f / 120);
  p = p * r + splat(1.0f / 24);
  p = p * r + splat(1.0f / 6);
  p = p * r + splat(0.5f);
  return {(Floats)(((Ints)shifted << 23) + splat(0x3f800000)), p * (r * r) + r};
}

// e^x for x <= 0, minus infinity included; 0 below -87. NaN stays NaN.
inline Floats exp_of_negative(Floats x) {
  const ExpParts parts = exp_parts(larger(splat(-87.0f), x));
  return x < splat(-87.0f) ? Floats{} : parts.power * parts.rest + parts.power;
}

// tanh from e^2|x| - 1, which keeps small arguments exact. NaN stays NaN.
inline Floats tanh_of(Floats x) {
  const Floats size = x < Floats{} ? -x : x;
  const ExpParts parts = exp_parts(smaller(splat(40.0f), size + size));
  const Floats e = parts.power * parts.rest + (parts.power - splat(1.0f));
  const Floats t = e / (e + splat(2.0f));
  return x < Floats{} ? -t : t;
}

// Rounds to the nearest bf16, ties to even; NaN stays NaN.
inline uint16_t to_bf16(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}
inline float from_bf16(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float result;
  __builtin_memcpy(&result, &bits, 4);
  return result;
}

}  // namespace
}  // namespace tl::TL_ISA
