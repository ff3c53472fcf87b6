#include "round_head.h"

#include "attention.h"
#include "vectors.h"

namespace tl::TL_ISA {
namespace {

using attention::kMaxInt8HeadDim;

typedef int8_t Codes __attribute__((vector_size(kLanes)));

// As floats, with zeros up to whole vectors.
void widen(const char* source, bool is_bf16, int dim, float* values) {
  if (is_bf16) {
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(source);
    for (int d = 0; d < dim; ++d) values[d] = from_bf16(halves[d]);
  } else {
    __builtin_memcpy(values, source, static_cast<size_t>(dim) * 4);
  }
  for (int d = dim; d % kLanes != 0; ++d) values[d] = 0.0f;
}

}  // namespace

float round_head(const char* source, bool is_bf16, int dim, int8_t* target) {
  float values[kMaxInt8HeadDim];
  widen(source, is_bf16, dim, values);
  Floats top{}, zero{};
  for (int d = 0; d < dim; d += kLanes) {
    const Floats x = load(values + d);
    top = larger(top, x < Floats{} ? -x : x);
    zero += x * splat(0.0f);
  }
  const float total = sum(zero);
  if (total != 0) {  // NaN, as is what 0 times infinity gives
    __builtin_memset(target, 0, static_cast<size_t>(dim));
    return total;
  }
  const float scale = largest(top) / 127.0f;
  const Floats divisor = splat(scale > 0 ? scale : 1.0f), shift = splat(0x1.8p23f);  // adding it rounds
  int8_t codes[kMaxInt8HeadDim];
  for (int d = 0; d < dim; d += kLanes) {
    const Floats rounded = load(values + d) / divisor + shift - shift;
    const Codes own = __builtin_convertvector(__builtin_convertvector(rounded, Ints), Codes);
    __builtin_memcpy(codes + d, &own, sizeof own);
  }
  __builtin_memcpy(target, codes, static_cast<size_t>(dim));
  return scale;
}

}  // namespace tl::TL_ISA
