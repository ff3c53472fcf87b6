// Operations on logits, fp32 [R, V], as Python sees them. For the binding alone.
#pragma once

#include <ATen/record_function.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "operands.h"
#include "ranking.h"
#include "row_max.h"

namespace tl {
namespace {

// Of each row the greatest and the first place of it; NaN counts as greatest. Few rows are cut, so that all threads
// read.
std::tuple<at::Tensor, at::Tensor> row_max(const at::Tensor& scores) {
  RECORD_FUNCTION("tokenloom::row_max", c10::ArrayRef<const c10::IValue>{});
  TORCH_CHECK(scores.dim() == 2 && scores.scalar_type() == at::kFloat && scores.device().is_cpu() &&
                  scores.is_contiguous() && scores.size(1) > 0,
              "scores must be float32 with 2 dimensions, contiguous, and have columns");
  const int64_t num_rows = scores.size(0), size = scores.size(1), threads = max_threads();
  const int64_t num_parts = num_rows >= 2 * threads || num_rows == 0 ? 1 : std::min(2 * threads, size);
  std::vector<Greatest> found(static_cast<size_t>(num_rows * num_parts));
  const float* from = scores.const_data_ptr<float>();
  const auto kernel = greatest_of_kernel();
  by_rows(num_rows * num_parts, scores.numel(), kCheapElements, [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      const int64_t part = i % num_parts;
      found[i] = kernel(from + i / num_parts * size, size * part / num_parts, size * (part + 1) / num_parts);
    }
  });
  at::Tensor values = at::empty({num_rows}, scores.options()), indices = at::empty({num_rows}, at::kLong);
  for (int64_t row = 0; row < num_rows; ++row) {
    Greatest best = found[row * num_parts];
    for (int64_t part = 1; part < num_parts && best.value == best.value; ++part) {
      const Greatest& own = found[row * num_parts + part];
      if (!(own.value <= best.value)) best = own;
    }
    values.mutable_data_ptr<float>()[row] = best.value;
    indices.mutable_data_ptr<int64_t>()[row] = best.index;
  }
  return {values, indices};
}

// The first `width` numbers of each row in rank order, see ranking.h: places and numbers, [R, width] each.
std::tuple<at::Tensor, at::Tensor> rank(const at::Tensor& scores, int64_t width) {
  RECORD_FUNCTION("tokenloom::rank", c10::ArrayRef<const c10::IValue>{});
  TORCH_CHECK(scores.dim() == 2 && scores.scalar_type() == at::kFloat && scores.device().is_cpu() &&
                  scores.is_contiguous() && width > 0 && width <= scores.size(1),
              "scores must be float32 with 2 dimensions, contiguous, and have at least ", width, " columns, and one");
  const int64_t num_rows = scores.size(0), size = scores.size(1);
  at::Tensor places = at::empty({num_rows, width}, scores.options().dtype(at::kLong));
  at::Tensor ranked = at::empty({num_rows, width}, scores.options());
  const float* from = scores.const_data_ptr<float>();
  int64_t* place = places.mutable_data_ptr<int64_t>();
  float* number = ranked.mutable_data_ptr<float>();
  by_rows(num_rows, scores.numel(), kDearElements, [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) rank_row(from + i * size, size, width, place + i * width, number + i * width);
  });
  return {places, ranked};
}

}  // namespace
}  // namespace tl
