// The native operations as Python sees them. Shapes and meaning are those of `OpTable`, all in bf16 on the CPU.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "linear.h"
#include "logits.h"
#include "operands.h"
#include "pointwise.h"

namespace tl {
namespace {

// Multiplications below which a second thread costs more than it brings.
constexpr int64_t kLinearElements = 1 << 17;
// Rows looked up, below which a second thread costs more than it brings: each is scattered over many cache lines.
constexpr int64_t kLookedUp = 8;
// Rows of one part of a product that is split by rows as well, because it has few columns for many threads.
constexpr int64_t kPartRows = 32;
// Up to two rows, vectors read the weights a little faster than tiles.
constexpr int64_t kMinTileRows = 3;

at::Tensor gated(const at::Tensor& x, Gate gate) {
  check(x, 2, "gate_up");
  TORCH_CHECK(x.size(1) % 2 == 0, "gate_up needs an even number of columns, got ", x.size(1));
  const int64_t size = x.size(1) / 2;
  at::Tensor y = at::empty({x.size(0), size}, x.options());
  const GateArgs args{data_of(x), x.stride(0), data_to(y), size, gate};
  const auto kernel = gate_rows_kernel();
  by_rows(x.size(0), y.numel(), kDearElements, [&](int64_t first, int64_t end) { kernel(args, first, end); });
  return y;
}

// A linear layer with packed weights.
class Linear {
 public:
  // With `apart`, a row's result has the same bits in any batch: tiles and vectors do not round alike, so one of them
  // serves all.
  Linear(at::Tensor packed, std::optional<at::Tensor> bias, int64_t in_features, int64_t out_features, bool apart)
      : packed_(std::move(packed)), bias_(std::move(bias)), in_features_(in_features), out_features_(out_features),
        min_tile_rows_(apart ? 1 : kMinTileRows) {
    check(packed_, 4, "packed weights");
    const int64_t pairs = (in_features + kDepth - 1) / kDepth * kDepth / 2;
    const int64_t panels = (out_features + kPanel - 1) / kPanel;
    TORCH_CHECK(packed_.is_contiguous() && packed_.numel() == panels * pairs * kPanel * 2, "weights are not packed");
    if (bias_) check_weight(*bias_, out_features, "bias");
    TORCH_CHECK(!bias_ || bias_->scalar_type() == at::kBFloat16, "bias must be bfloat16");
  }

  at::Tensor apply(const at::Tensor& x) const { return product(x, at::kBFloat16); }

  at::Tensor apply_float32(const at::Tensor& x) const { return product(x, at::kFloat); }

  // The activation of the first half of the columns, times the second half.
  at::Tensor apply_gated(const at::Tensor& x, Gate gate) const {
    const int64_t size = out_features_ / 2;
    TORCH_CHECK(out_features_ % 2 == 0, "a gated product needs an even number of columns, got ", out_features_);
    if (size % kPanel != 0) return gated(apply(x), gate);
    RECORD_FUNCTION("tokenloom::gated_linear", c10::ArrayRef<const c10::IValue>{});
    at::Tensor y = at::empty({x.size(0), size}, x.options());
    const bool use_tiles = has_tiles_for(x);
    const at::Tensor rows = operand(x, use_tiles);
    const LinearArgs args = args_of(rows, x.size(0), data_to(y), nullptr, size);
    const auto kernel = linear_gated_panels_kernel();
    run(args, size / kPanel, [&](const LinearArgs& own, int64_t first, int64_t end) {
      thread_local std::vector<float> scratch(kGatedScratch);
      kernel(own, gate, use_tiles, scratch.data(), first, end);
    });
    return y;
  }

  // Rows of the weight, as an embedding looks them up: int64 [n] -> [n, in_features].
  at::Tensor rows(const at::Tensor& indices) const {
    RECORD_FUNCTION("tokenloom::rows", c10::ArrayRef<const c10::IValue>{});
    TORCH_CHECK(indices.dim() == 1 && indices.scalar_type() == at::kLong && indices.is_contiguous() &&
                    indices.device().is_cpu(), "indices must be int64 [n] on the CPU, contiguous");
    const int64_t count = indices.size(0), num_pairs = packed_.size(1);
    const int64_t* chosen = indices.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < count; ++i) {
      TORCH_CHECK_INDEX(0 <= chosen[i] && chosen[i] < out_features_, "row ", chosen[i], " of ", out_features_);
    }
    at::Tensor y = at::empty({count, in_features_}, packed_.options());
    bf16* to = data_to(y);
    const bf16* packed = data_of(packed_);
    by_rows(count, count, kLookedUp, [&](int64_t first, int64_t end) {
      for (int64_t i = first; i < end; ++i) {
        const bf16* from = packed + (chosen[i] / kPanel * num_pairs * kPanel + chosen[i] % kPanel) * 2;
        bf16* row = to + i * in_features_;
        for (int64_t k = 0; k + 1 < in_features_; k += 2) std::memcpy(row + k, from + k * kPanel, 2 * sizeof(bf16));
        if (in_features_ % 2 != 0) row[in_features_ - 1] = from[(in_features_ - 1) * kPanel];
      }
    });
    return y;
  }

 private:
  at::Tensor product(const at::Tensor& x, at::ScalarType dtype) const {
    RECORD_FUNCTION("tokenloom::linear", c10::ArrayRef<const c10::IValue>{});
    at::Tensor y = at::empty({x.size(0), out_features_}, x.options().dtype(dtype));
    const bool use_tiles = has_tiles_for(x);
    const at::Tensor rows = operand(x, use_tiles);
    bf16* half = dtype == at::kFloat ? nullptr : data_to(y);
    float* full = dtype == at::kFloat ? y.mutable_data_ptr<float>() : nullptr;
    const LinearArgs args = args_of(rows, x.size(0), half, full, out_features_);
    const auto kernel = use_tiles ? linear_panels_amx_kernel() : linear_panels_kernel();
    run(args, args.num_panels(), kernel);
    return y;
  }

  bool has_tiles_for(const at::Tensor& x) const {
    return x.size(0) >= min_tile_rows_ && current_isa() == Isa::amx;
  }

  // x, checked, with zeros up to the depth of a tile where tiles are used.
  at::Tensor operand(const at::Tensor& x, bool use_tiles) const {
    check(x, 2, "x");
    TORCH_CHECK(x.size(1) == in_features_, "x has ", x.size(1), " columns, the weights ", in_features_);
    const int64_t missing = (kDepth - in_features_ % kDepth) % kDepth;
    return use_tiles && missing != 0 ? at::constant_pad_nd(x, {0, missing}) : x;
  }

  LinearArgs args_of(const at::Tensor& x, int64_t num_rows, bf16* y, float* y_fp32, int64_t y_stride) const {
    return {data_of(x), x.stride(0), data_of(packed_), bias_ ? data_of(*bias_) : nullptr,
            y, y_fp32, y_stride, num_rows, x.size(1), out_features_};
  }

  template <class Kernel>
  void run(const LinearArgs& args, int64_t num_panels, const Kernel& kernel) const {
    if (args.num_rows == 0 || num_panels == 0) return;
    pybind11::gil_scoped_release release;
    const int64_t work = in_features_ * out_features_ * (1 + args.num_rows / 8);
    parallel(work >= kLinearElements, [&](int thread, int num_threads) {
      multiply(args, num_panels, kernel, thread, num_threads);
    });
  }

  // One thread's share: whole panels, of all rows unless there are too few panels for so many threads.
  template <class Kernel>
  static void multiply(
      const LinearArgs& args, int64_t num_panels, const Kernel& kernel, int thread, int num_threads) {
    const int64_t wanted = (2 * num_threads + num_panels - 1) / num_panels;
    const int64_t most = (args.num_rows + kPartRows - 1) / kPartRows;
    const int64_t num_parts = num_panels >= 2 * num_threads ? 1 : std::min(wanted, most);
    const Part part = part_of(num_parts * num_panels, thread, num_threads);
    for (int64_t item = part.begin; item < part.end;) {
      const int64_t row_part = item / num_panels, first = item % num_panels;
      const int64_t end = std::min(num_panels, first + part.end - item);
      const int64_t row = args.num_rows * row_part / num_parts;
      LinearArgs own = args;
      own.num_rows = args.num_rows * (row_part + 1) / num_parts - row;
      own.x += row * own.x_stride;
      if (own.y != nullptr) own.y += row * own.y_stride;
      if (own.y_fp32 != nullptr) own.y_fp32 += row * own.y_stride;
      kernel(own, first, end);
      item += end - first;
    }
  }

  at::Tensor packed_;
  std::optional<at::Tensor> bias_;
  int64_t in_features_, out_features_, min_tile_rows_;
};

at::Tensor norm(const at::Tensor& x, const at::Tensor* residual, const at::Tensor& weight, double eps) {
  check(x, 2, "x");
  check_weight(weight, x.size(1), "the norm's weight");
  at::Tensor y = at::empty(x.sizes(), x.options());
  const NormArgs args{
      data_of(x), x.stride(0), residual ? data_to(*residual) : nullptr, residual ? residual->stride(0) : 0,
      weight.const_data_ptr(), weight.scalar_type() == at::kFloat, static_cast<float>(eps),
      data_to(y), x.size(1), x.size(1)};
  const auto kernel = norm_rows_kernel();
  by_rows(x.size(0), x.numel(), kCheapElements, [&](int64_t first, int64_t end) { kernel(args, first, end); });
  return y;
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  RECORD_FUNCTION("tokenloom::rms_norm", c10::ArrayRef<const c10::IValue>{});
  return norm(x, nullptr, weight, eps);
}

std::tuple<at::Tensor, at::Tensor> add_rms_norm(
    const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double eps) {
  RECORD_FUNCTION("tokenloom::add_rms_norm", c10::ArrayRef<const c10::IValue>{});
  check(residual, 2, "the residual");
  TORCH_CHECK(residual.sizes() == x.sizes(), "x and the residual differ in shape");
  return {norm(x, &residual, weight, eps), residual};
}

at::Tensor head_rms_norm(const at::Tensor& heads, const at::Tensor& weights, int64_t num_queries, double eps) {
  RECORD_FUNCTION("tokenloom::head_rms_norm", c10::ArrayRef<const c10::IValue>{});
  check(heads, 3, "heads");
  check_weight(weights, heads.size(2), "the norms' weights");
  TORCH_CHECK(weights.dim() == 2 && weights.size(0) == 2, "the norms' weights must be [2, D]");
  at::Tensor y = at::empty(heads.sizes(), heads.options());
  const HeadNormArgs args{
      data_of(heads), heads.stride(0), heads.stride(1), weights.const_data_ptr(),
      weights.scalar_type() == at::kFloat, static_cast<float>(eps), data_to(y),
      heads.size(1), num_queries, heads.size(2)};
  const auto kernel = head_norm_tokens_kernel();
  by_rows(heads.size(0), heads.numel(), kCheapElements, [&](int64_t first, int64_t end) { kernel(args, first, end); });
  return y;
}

at::Tensor rotated(const at::Tensor& heads, const at::Tensor& cos, const at::Tensor& signed_sin) {
  check(heads, 3, "heads");
  check(cos, 3, "cos");
  check(signed_sin, 3, "signed_sin");
  const int64_t rotary_dim = cos.size(2);
  TORCH_CHECK(
      cos.sizes() == signed_sin.sizes() && cos.stride(0) == signed_sin.stride(0) && cos.size(0) == heads.size(0) &&
          cos.size(1) == 1 && rotary_dim % 2 == 0 && rotary_dim <= heads.size(2),
      "cos and signed_sin must both be [T, 1, R], R even and at most the heads' size");
  at::Tensor y = at::empty(heads.sizes(), heads.options());
  const RotaryArgs args{
      data_of(heads), heads.stride(0), heads.stride(1), data_of(cos), data_of(signed_sin), cos.stride(0),
      data_to(y), heads.size(1), heads.size(2), rotary_dim};
  const auto kernel = rotate_tokens_kernel();
  by_rows(heads.size(0), heads.numel(), kCheapElements, [&](int64_t first, int64_t end) { kernel(args, first, end); });
  return y;
}

at::Tensor rotary(const at::Tensor& heads, const at::Tensor& cos, const at::Tensor& signed_sin) {
  RECORD_FUNCTION("tokenloom::rotary", c10::ArrayRef<const c10::IValue>{});
  return rotated(heads, cos, signed_sin);
}

// Queries and keys rotated, and values as they are: views are made here, where they cost little.
std::tuple<at::Tensor, at::Tensor, at::Tensor> split_rotary(
    const at::Tensor& projected, int64_t num_heads, int64_t num_kv_heads, const at::Tensor& cos,
    const at::Tensor& signed_sin) {
  RECORD_FUNCTION("tokenloom::split_rotary", c10::ArrayRef<const c10::IValue>{});
  check(projected, 2, "projected");
  const int64_t num_all = num_heads + 2 * num_kv_heads, tokens = projected.size(0);
  TORCH_CHECK(num_heads >= 0 && num_kv_heads > 0 && projected.size(1) % num_all == 0,
              "projected has ", projected.size(1), " columns, no multiple of ", num_all, " heads");
  const int64_t size = projected.size(1) / num_all, stride = projected.stride(0);
  const auto heads = [&](int64_t first, int64_t count) {
    return projected.as_strided({tokens, count, size}, {stride, size, 1}, projected.storage_offset() + first * size);
  };
  const at::Tensor turned = rotated(heads(0, num_heads + num_kv_heads), cos, signed_sin);
  const int64_t step = (num_heads + num_kv_heads) * size;
  return {turned.as_strided({tokens, num_heads, size}, {step, size, 1}, 0),
          turned.as_strided({tokens, num_kv_heads, size}, {step, size, 1}, num_heads * size),
          heads(num_heads + num_kv_heads, num_kv_heads)};
}

at::Tensor silu_and_mul(const at::Tensor& gate_up) {
  RECORD_FUNCTION("tokenloom::silu_and_mul", c10::ArrayRef<const c10::IValue>{});
  return gated(gate_up, Gate::silu);
}

at::Tensor gelu_tanh_and_mul(const at::Tensor& gate_up) {
  RECORD_FUNCTION("tokenloom::gelu_tanh_and_mul", c10::ArrayRef<const c10::IValue>{});
  return gated(gate_up, Gate::gelu_tanh);
}

}  // namespace
}  // namespace tl

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("isa", [] { return tl::isa_name(tl::current_isa()); });
  m.def("set_isa", [](const std::string& name) { return tl::set_isa(name.c_str()); });
  pybind11::class_<tl::Linear>(m, "Linear")
      .def(pybind11::init<at::Tensor, std::optional<at::Tensor>, int64_t, int64_t, bool>())
      .def("apply", &tl::Linear::apply)
      .def("apply_float32", &tl::Linear::apply_float32)
      .def("rows", &tl::Linear::rows)
      .def("apply_silu_gated", [](const tl::Linear& own, const at::Tensor& x) { return own.apply_gated(x, tl::Gate::silu); })
      .def("apply_gelu_tanh_gated", [](const tl::Linear& own, const at::Tensor& x) {
        return own.apply_gated(x, tl::Gate::gelu_tanh);
      });
  m.def("rms_norm", &tl::rms_norm);
  m.def("add_rms_norm", &tl::add_rms_norm);
  m.def("head_rms_norm", &tl::head_rms_norm);
  m.def("rotary", &tl::rotary);
  m.def("split_rotary", &tl::split_rotary);
  m.def("noisy_choice", &tl::noisy_choice);
  m.def("rank", &tl::rank);
  m.def("row_max", &tl::row_max);
  m.def("total_mass", &tl::total_mass);
  m.def("silu_and_mul", &tl::silu_and_mul);
  m.def("gelu_tanh_and_mul", &tl::gelu_tanh_and_mul);
}
