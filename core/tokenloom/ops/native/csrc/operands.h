// Tensors as operands of kernels, and rows shared out among threads. For the binding alone.
#pragma once

#include <ATen/ATen.h>

#include <tokenloom/isa.h>
#include <tokenloom/parallel.h>
#include <tokenloom/vec.h>

namespace tl {
namespace {

// Elements below which a second thread costs more than it brings; rows with an exponential function are dearer.
constexpr int64_t kCheapElements = 1 << 16;
constexpr int64_t kDearElements = 1 << 14;

const bf16* data_of(const at::Tensor& tensor) { return static_cast<const bf16*>(tensor.const_data_ptr()); }
bf16* data_to(const at::Tensor& tensor) { return static_cast<bf16*>(tensor.mutable_data_ptr()); }

void check(const at::Tensor& tensor, int64_t num_dims, const char* what) {
  TORCH_CHECK(
      tensor.dim() == num_dims && tensor.scalar_type() == at::kBFloat16 && tensor.device().is_cpu() &&
          (tensor.size(-1) <= 1 || tensor.stride(-1) == 1),
      what, " must be bfloat16 with ", num_dims, " dimensions, the last one contiguous");
}

void check_weight(const at::Tensor& weight, int64_t size, const char* what) {
  const bool is_float = weight.scalar_type() == at::kBFloat16 || weight.scalar_type() == at::kFloat;
  TORCH_CHECK(is_float && weight.is_contiguous() && weight.size(-1) == size, what, " must be contiguous, of ", size);
}

// Calls rows(first, end) for parts of [0, count), each on its own thread if `elements` are worth it.
template <class Rows>
void by_rows(int64_t count, int64_t elements, int64_t threshold, const Rows& rows) {
  parallel(elements >= threshold, [&](int thread, int num_threads) {
    const Part part = part_of(count, thread, num_threads);
    if (part.begin < part.end) rows(part.begin, part.end);
  });
}

}  // namespace
}  // namespace tl
