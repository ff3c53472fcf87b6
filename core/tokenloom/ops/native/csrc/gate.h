// The activations of gated feed-forward networks.
#pragma once

#include <tokenloom/isa.h>
#include <tokenloom/vec.h>

namespace tl {

enum class Gate { silu = 0, gelu_tanh = 1 };

}  // namespace tl

namespace tl::TL_ISA {

static inline Vec sigmoid(Vec x) { return Vec::all(1.0f) / (Vec::all(1.0f) + exp(Vec::zero() - x)); }

static inline Vec activate(Gate gate, Vec x) {
  if (gate == Gate::silu) return x * sigmoid(x);
  // x (1 + tanh u) / 2 = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3)
  const Vec u = x * Vec::fma(x * x, Vec::all(0.044715f), Vec::all(1.0f)) * Vec::all(0.7978845608f);
  return x * sigmoid(u + u);
}

}  // namespace tl::TL_ISA
