#include "gate.h"
#include "pointwise.h"

#include <type_traits>

namespace tl::TL_ISA {
namespace {

constexpr int64_t kLanes = Vec::kLanes;

// Calls body(offset, count) for each vector of a row; count is below kLanes for the last one only, and is a constant
// otherwise, so that the compiler drops what only partial vectors need.
template <class Body>
inline void for_each_vector(int64_t size, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) body(i, std::integral_constant<int64_t, kLanes>{});
  if (i < size) body(i, size - i);
}

template <class T, class Count>
inline Vec load(const T* from, Count count) {
  if constexpr (std::is_same_v<Count, int64_t>) {
    return Vec::load_part(from, count);
  } else {
    return Vec::load(from);
  }
}

template <class T, class Count>
inline void store(T* to, Vec value, Count count) {
  if constexpr (std::is_same_v<Count, int64_t>) {
    value.store_part(to, count);
  } else {
    value.store(to);
  }
}

template <class Weight>
inline void norm_row(const bf16* x, const Weight* weight, int64_t size, float eps, bf16* y) {
  Vec squares = Vec::zero();
  for_each_vector(size, [&](int64_t i, auto count) {
    const Vec value = load(x + i, count);
    squares = Vec::fma(value, value, squares);
  });
  const Vec factor = Vec::all(1.0f / std::sqrt(squares.sum() / static_cast<float>(size) + eps));
  for_each_vector(size, [&](int64_t i, auto count) {
    store(y + i, load(x + i, count) * factor * load(weight + i, count), count);
  });
}

inline void norm_row(const bf16* x, const void* weight, bool is_fp32, int64_t size, float eps, bf16* y) {
  if (is_fp32) {
    norm_row(x, static_cast<const float*>(weight), size, eps, y);
  } else {
    norm_row(x, static_cast<const bf16*>(weight), size, eps, y);
  }
}

}  // namespace

void norm_rows(const NormArgs& a, int64_t first, int64_t end) {
  for (int64_t row = first; row < end; ++row) {
    const bf16* x = a.x + row * a.x_stride;
    if (a.residual != nullptr) {
      bf16* residual = a.residual + row * a.residual_stride;
      for_each_vector(a.size, [&](int64_t i, auto count) {
        store(residual + i, load(residual + i, count) + load(x + i, count), count);
      });
      x = residual;
    }
    norm_row(x, a.weight, a.has_fp32_weight, a.size, a.eps, a.y + row * a.y_stride);
  }
}

void head_norm_tokens(const HeadNormArgs& a, int64_t first, int64_t end) {
  const int64_t weight_bytes = a.size * (a.has_fp32_weight ? 4 : 2);
  for (int64_t token = first; token < end; ++token) {
    for (int64_t head = 0; head < a.num_heads; ++head) {
      const char* weight = static_cast<const char*>(a.weights) + (head < a.num_queries ? 0 : weight_bytes);
      norm_row(
          a.x + token * a.token_stride + head * a.head_stride, static_cast<const void*>(weight), a.has_fp32_weight,
          a.size, a.eps, a.y + (token * a.num_heads + head) * a.size);
    }
  }
}

void rotate_tokens(const RotaryArgs& a, int64_t first, int64_t end) {
  const int64_t half = a.rotary_dim / 2;
  for (int64_t token = first; token < end; ++token) {
    // The first half of signed_sin is the negated second one; only the second is read.
    const bf16* cos = a.cos + token * a.angle_stride;
    const bf16* sin = a.signed_sin + token * a.angle_stride + half;
    for (int64_t head = 0; head < a.num_heads; ++head) {
      const bf16* x = a.x + token * a.token_stride + head * a.head_stride;
      bf16* y = a.y + (token * a.num_heads + head) * a.size;
      for_each_vector(half, [&](int64_t i, auto count) {
        const Vec low = load(x + i, count), high = load(x + half + i, count);
        const Vec c = load(cos + i, count), s = load(sin + i, count);
        store(y + i, low * c - high * s, count);
        store(y + half + i, Vec::fma(low, s, high * c), count);
      });
      std::memcpy(
          y + a.rotary_dim, x + a.rotary_dim, static_cast<size_t>(a.size - a.rotary_dim) * sizeof(bf16));
    }
  }
}

void gate_rows(const GateArgs& a, int64_t first, int64_t end) {
  for (int64_t row = first; row < end; ++row) {
    const bf16* gate = a.x + row * a.x_stride;
    const bf16* up = gate + a.size;
    bf16* y = a.y + row * a.size;
    for_each_vector(a.size, [&](int64_t i, auto count) {
      store(y + i, activate(a.gate, load(gate + i, count)) * load(up + i, count), count);
    });
  }
}

}  // namespace tl::TL_ISA
