// Products with weights of 4 and 8 bits as Python sees them.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <torch/csrc/utils/pybind.h>

#include <tokenloom/isa.h>
#include <tokenloom/parallel.h>

#include <memory>
#include <optional>

#include "low_bit.h"
#include "unpack_row.h"

namespace tl {
namespace {

// Elements of activations below which one thread prepares them all, and products below which one computes them.
constexpr int64_t kPreparedElements = 1 << 13;
constexpr int64_t kLinearElements = 1 << 17;
// Rows of one part of a product that is split by rows as well, because it has few columns for many threads.
constexpr int64_t kPartRows = 32;

int64_t padded_to(int64_t size, int64_t multiple) { return (size + multiple - 1) / multiple * multiple; }

// Memory that lasts from call to call. The alignment is that of a cache line.
class Scratch {
 public:
  void* get(int64_t num_bytes) {
    if (num_bytes > size_) {
      memory_.reset(new char[static_cast<size_t>(num_bytes + kLine)]);
      size_ = num_bytes;
    }
    return reinterpret_cast<void*>(padded_to(reinterpret_cast<int64_t>(memory_.get()), kLine));
  }

  static constexpr int64_t kLine = 64;

 private:
  std::unique_ptr<char[]> memory_;
  int64_t size_ = 0;
};

// A linear layer with packed weights; shapes are those of low_bit.h.
class LowBitLinear {
 public:
  LowBitLinear(
      at::Tensor codes, at::Tensor scales, std::optional<at::Tensor> minima, std::optional<at::Tensor> bias, int bits,
      int64_t in_features, int64_t out_features, int64_t row_group)
      : codes_(std::move(codes)), scales_(std::move(scales)), minima_(std::move(minima)), bias_(std::move(bias)),
        rounds_activations_(row_group > 0) {
    TORCH_CHECK(bits == 4 || bits == 8, "codes must have 4 or 8 bits, got ", bits);
    const int64_t num_panels = (out_features + kPanel - 1) / kPanel;
    check_packed(codes_, at::kByte, "codes");
    TORCH_CHECK(codes_.dim() == 4 && codes_.size(0) == num_panels && codes_.size(2) == kPanel && codes_.size(3) == 4,
                "codes must be [panels, planes, 32, 4]");
    const bool is_half = scales_.scalar_type() == at::kHalf;
    check_packed(scales_, is_half ? at::kHalf : at::kFloat, "scales");
    TORCH_CHECK(scales_.dim() == 3 && scales_.size(0) == num_panels && scales_.size(2) == kPanel,
                "scales must be [panels, groups, 32]");
    if (minima_) {
      check_packed(*minima_, scales_.scalar_type(), "minima");
      TORCH_CHECK(minima_->sizes() == scales_.sizes(), "minima must have the shape of the scales");
    }
    if (bias_) {
      check_packed(*bias_, at::kFloat, "bias");
      TORCH_CHECK(bias_->numel() == num_panels * kPanel, "bias must be filled up to whole panels");
    }
    const int64_t padded = codes_.size(1) * (bits == 4 ? 8 : 4), num_groups = scales_.size(1);
    TORCH_CHECK(num_groups > 0 && padded >= in_features && padded % (num_groups * kBlock) == 0,
                "groups must be a multiple of 8 codes and fill the planes");
    const int64_t num_row_groups = row_group > 0 ? padded / row_group : num_groups;
    TORCH_CHECK(num_row_groups == num_groups || (num_groups == 1 && row_group % kBlock == 0 && padded % row_group == 0),
                "activations must have the weights' groups, unless those have one");
    const void* minimum = minima_ ? minima_->const_data_ptr() : nullptr;
    const float* own_bias = bias_ ? bias_->const_data_ptr<float>() : nullptr;
    weights_ = {codes_.const_data_ptr<uint8_t>(), scales_.const_data_ptr(), minimum, is_half, own_bias,
                bits, in_features, padded, out_features, num_groups, num_row_groups};
  }

  at::Tensor apply(const at::Tensor& x) const { return product(x, x.scalar_type()); }
  at::Tensor apply_float32(const at::Tensor& x) const { return product(x, at::kFloat); }

  // Rows of W: int64 [M] -> fp32 [M, in_features].
  at::Tensor rows(const at::Tensor& indices) const {
    TORCH_CHECK(indices.dim() == 1 && indices.scalar_type() == at::kLong && indices.is_contiguous(),
                "indices must be int64 with one dimension, contiguous");
    at::Tensor values = at::empty({indices.size(0), weights_.in_features}, scales_.options().dtype(at::kFloat));
    const int64_t* index = indices.const_data_ptr<int64_t>();
    float* to = values.mutable_data_ptr<float>();
    for (int64_t i = 0; i < indices.size(0); ++i, to += weights_.in_features) {
      TORCH_CHECK(index[i] >= 0 && index[i] < weights_.out_features, "row ", index[i], " of ", weights_.out_features);
      unpack_row(weights_, index[i], to);
    }
    return values;
  }

 private:
  static void check_packed(const at::Tensor& tensor, at::ScalarType dtype, const char* what) {
    TORCH_CHECK(tensor.scalar_type() == dtype && tensor.device().is_cpu() && tensor.is_contiguous(), what,
                " must be contiguous, of ", dtype);
  }

  at::Tensor product(const at::Tensor& x, at::ScalarType dtype) const {
    RECORD_FUNCTION("tokenloom::low_bit_linear", c10::ArrayRef<const c10::IValue>{});
    const bool is_half = x.scalar_type() == at::kBFloat16;
    TORCH_CHECK(x.dim() == 2 && x.device().is_cpu() && (is_half || x.scalar_type() == at::kFloat),
                "x must be bfloat16 or float32 with 2 dimensions");
    TORCH_CHECK(x.size(1) == weights_.in_features, "x has ", x.size(1), " columns, the weights ", weights_.in_features);
    TORCH_CHECK(x.size(1) <= 1 || x.stride(1) == 1, "the last dimension of x must be contiguous");
    at::Tensor y = at::empty({x.size(0), weights_.out_features}, x.options().dtype(dtype));
    if (y.numel() == 0) return y;
    pybind11::gil_scoped_release release;
    thread_local Scratch scratch;
    const LowBitRows rows = rows_of(x, is_half, scratch);
    run({weights_, rows, y.mutable_data_ptr(), dtype == at::kBFloat16, weights_.out_features});
    return y;
  }

  // Where the activations are, and room for what is made of them.
  LowBitRows rows_of(const at::Tensor& x, bool is_half, Scratch& scratch) const {
    LowBitRows rows{};
    rows.x = x.const_data_ptr();
    rows.is_half = is_half;
    rows.x_stride = x.stride(0);
    rows.num_rows = x.size(0);
    const bool multiplies_half = is_half && current_isa() >= Isa::avx512;
    rows.form = rounds_activations_ ? Form::as_int8 : multiplies_half ? Form::as_bf16 : Form::as_float;
    const bool is_ready = rows.form == Form::as_bf16 && weights_.padded == weights_.in_features;
    const int64_t value_bytes = rows.form == Form::as_int8 ? 1 : rows.form == Form::as_bf16 ? 2 : 4;
    const int64_t values = is_ready ? 0 : padded_to(rows.num_rows * weights_.padded * value_bytes, Scratch::kLine);
    const int64_t numbers = padded_to(rows.num_rows * weights_.num_row_groups * 4, Scratch::kLine);
    const int64_t row_numbers = padded_to(rows.num_rows * 4, Scratch::kLine);
    char* memory = static_cast<char*>(scratch.get(values + 2 * numbers + row_numbers));
    rows.values = is_ready ? const_cast<void*>(rows.x) : memory;
    rows.values_stride = is_ready ? rows.x_stride : weights_.padded;
    if (rows.form == Form::as_int8) rows.scales = reinterpret_cast<float*>(memory + values);
    const bool needs_sums = rows.form == Form::as_int8 || weights_.minima != nullptr;
    if (needs_sums) rows.sums = memory + values + numbers;
    rows.row_sums = reinterpret_cast<float*>(memory + values + 2 * numbers);
    return rows;
  }

  static void run(const LowBitArgs& args) {
    const int64_t num_rows = args.rows.num_rows, num_panels = args.weights.num_panels();
    const auto prepare = prepare_rows_kernel();
    const auto multiply_panels = low_bit_panels_kernel();
    const bool is_split = num_rows > 1 && num_rows * args.weights.padded >= kPreparedElements;
    if (!is_split) prepare(args.weights, args.rows, 0, num_rows, wide_of(args.weights));
    const int64_t work = args.weights.in_features * args.weights.out_features * (1 + num_rows / 8);
    parallel(is_split || work >= kLinearElements, [&](int thread, int num_threads) {
      if (is_split) {
        const Part part = part_of(num_rows, thread, num_threads);
        prepare(args.weights, args.rows, part.begin, part.end, wide_of(args.weights));
        if (num_threads > 1) {
#pragma omp barrier
        }
      }
      multiply(args, num_panels, multiply_panels, thread, num_threads);
    });
  }

  static float* wide_of(const LowBitWeights& weights) {
    thread_local Scratch wide;
    return static_cast<float*>(wide.get(weights.padded * 4));
  }

  // One thread's share: whole panels, of all rows unless there are too few panels for so many threads.
  static void multiply(
      const LowBitArgs& args, int64_t num_panels, low_bit_panels_fn kernel, int thread, int num_threads) {
    const int64_t num_rows = args.rows.num_rows;
    const int64_t wanted = (2 * num_threads + num_panels - 1) / num_panels;
    const int64_t most = (num_rows + kPartRows - 1) / kPartRows;
    const int64_t num_parts = num_panels >= 2 * num_threads ? 1 : std::min(wanted, most);
    const Part part = part_of(num_parts * num_panels, thread, num_threads);
    for (int64_t item = part.begin; item < part.end;) {
      const int64_t row_part = item / num_panels, first = item % num_panels;
      const int64_t end = std::min(num_panels, first + part.end - item);
      const int64_t row = num_rows * row_part / num_parts;
      kernel(from_row(args, row, num_rows * (row_part + 1) / num_parts), first, end);
      item += end - first;
    }
  }

  static LowBitArgs from_row(const LowBitArgs& args, int64_t row, int64_t end) {
    LowBitArgs own = args;
    const int64_t value_bytes = args.rows.form == Form::as_int8 ? 1 : args.rows.form == Form::as_bf16 ? 2 : 4;
    own.rows.num_rows = end - row;
    own.rows.values = static_cast<char*>(args.rows.values) + row * args.rows.values_stride * value_bytes;
    const int64_t number = row * args.weights.num_row_groups;
    if (args.rows.scales != nullptr) own.rows.scales += number;
    if (args.rows.sums != nullptr) own.rows.sums = static_cast<char*>(args.rows.sums) + 4 * number;
    own.rows.row_sums += row;
    own.y = static_cast<char*>(args.y) + row * args.y_stride * (args.is_half_out ? 2 : 4);
    return own;
  }

  at::Tensor codes_, scales_;
  std::optional<at::Tensor> minima_, bias_;
  bool rounds_activations_;
  LowBitWeights weights_{};
};

}  // namespace
}  // namespace tl

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("isa", [] { return tl::isa_name(tl::current_isa()); });
  m.def("set_isa", [](const std::string& name) { return tl::set_isa(name.c_str()); });
  pybind11::class_<tl::LowBitLinear>(m, "LowBitLinear")
      .def(pybind11::init<
           at::Tensor, at::Tensor, std::optional<at::Tensor>, std::optional<at::Tensor>, int, int64_t, int64_t,
           int64_t>())
      .def("apply", &tl::LowBitLinear::apply)
      .def("apply_float32", &tl::LowBitLinear::apply_float32)
      .def("rows", &tl::LowBitLinear::rows);
}
