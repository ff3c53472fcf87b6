// Operations on logits, fp32 [R, V], as Python sees them. For the binding alone.
#pragma once

#include <ATen/record_function.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "draw.h"
#include "mass.h"
#include "operands.h"
#include "ranking.h"
#include "row_max.h"

namespace tl {
namespace {

// Calls find(row, first, end) for parts of each row's steps [0, num_steps), and gives the greatest of what it finds in a
// row; of equals the first, and NaN counts as greatest. Few rows are cut, so that all threads have a part.
template <class Find>
std::vector<Greatest> greatest_of_rows(
    int64_t num_rows, int64_t num_steps, int64_t elements, int64_t threshold, const Find& find) {
  const int64_t threads = max_threads();
  const int64_t num_parts = num_rows >= 2 * threads || num_rows == 0 ? 1 : std::min(2 * threads, num_steps);
  std::vector<Greatest> found(static_cast<size_t>(num_rows * num_parts));
  by_rows(num_rows * num_parts, elements, threshold, [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      const int64_t part = i % num_parts;
      found[i] = find(i / num_parts, num_steps * part / num_parts, num_steps * (part + 1) / num_parts);
    }
  });
  std::vector<Greatest> best(static_cast<size_t>(num_rows));
  for (int64_t row = 0; row < num_rows; ++row) {
    best[row] = found[row * num_parts];
    for (int64_t part = 1; part < num_parts && best[row].value == best[row].value; ++part) {
      const Greatest& own = found[row * num_parts + part];
      if (!(own.value <= best[row].value)) best[row] = own;
    }
  }
  return best;
}

// Of each row the greatest and the first place of it; NaN counts as greatest.
std::tuple<at::Tensor, at::Tensor> row_max(const at::Tensor& scores) {
  RECORD_FUNCTION("tokenloom::row_max", c10::ArrayRef<const c10::IValue>{});
  TORCH_CHECK(scores.dim() == 2 && scores.scalar_type() == at::kFloat && scores.device().is_cpu() &&
                  scores.is_contiguous() && scores.size(1) > 0,
              "scores must be float32 with 2 dimensions, contiguous, and have columns");
  const int64_t num_rows = scores.size(0), size = scores.size(1);
  const float* from = scores.const_data_ptr<float>();
  const auto kernel = greatest_of_kernel();
  const std::vector<Greatest> best = greatest_of_rows(
      num_rows, size, scores.numel(), kCheapElements,
      [&](int64_t row, int64_t first, int64_t end) { return kernel(from + row * size, first, end); });
  at::Tensor values = at::empty({num_rows}, scores.options()), indices = at::empty({num_rows}, at::kLong);
  for (int64_t row = 0; row < num_rows; ++row) {
    values.mutable_data_ptr<float>()[row] = best[row].value;
    indices.mutable_data_ptr<int64_t>()[row] = best[row].index;
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

// Operands of noisy_choice: what each of the rows that draw has of its own, [R'].
struct Draws {
  const at::Tensor &rows, &tops, &temperatures, &least, &seeds, &choices, &positions;

  void check(const at::Tensor& logits) const {
    TORCH_CHECK(logits.dim() == 2 && logits.scalar_type() == at::kFloat && logits.device().is_cpu() &&
                    logits.is_contiguous() && logits.size(1) < INT64_C(1) << 32,
                "logits must be float32 with 2 dimensions and contiguous");
    for (const at::Tensor* numbers : {&rows, &seeds, &choices, &positions}) check_one(*numbers, at::kLong);
    for (const at::Tensor* numbers : {&tops, &temperatures, &least}) check_one(*numbers, at::kFloat);
    const int64_t* index = rows.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < rows.size(0); ++i)
      TORCH_CHECK(index[i] >= 0 && index[i] < logits.size(0), "row ", index[i], " of ", logits.size(0), " logits");
  }
  void check_one(const at::Tensor& numbers, at::ScalarType dtype) const {
    TORCH_CHECK(numbers.dim() == 1 && numbers.size(0) == rows.size(0) && numbers.scalar_type() == dtype &&
                    numbers.is_contiguous() && numbers.device().is_cpu(),
                "each row that draws needs a number of each kind, contiguous");
  }
  NoisyRow row(const at::Tensor& logits, int64_t i, int64_t purpose) const {
    const uint64_t seed = static_cast<uint64_t>(seeds.const_data_ptr<int64_t>()[i]);
    return {logits.const_data_ptr<float>() + rows.const_data_ptr<int64_t>()[i] * logits.size(1), logits.size(1),
            tops.const_data_ptr<float>()[i], temperatures.const_data_ptr<float>()[i], least.const_data_ptr<float>()[i],
            {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32),
             static_cast<uint32_t>(choices.const_data_ptr<int64_t>()[i]),
             static_cast<uint32_t>(positions.const_data_ptr<int64_t>()[i]), static_cast<uint32_t>(purpose)}};
  }
};

// argmax((logits[rows] - tops) / temperatures + noise), scores below `least` left out: int64 [R']. Of equal sums the
// first; 0 where nothing is left.
at::Tensor noisy_choice(const at::Tensor& logits, const at::Tensor& rows, const at::Tensor& tops,
                        const at::Tensor& temperatures, const at::Tensor& least, const at::Tensor& seeds,
                        const at::Tensor& choices, const at::Tensor& positions, int64_t purpose) {
  RECORD_FUNCTION("tokenloom::noisy_choice", c10::ArrayRef<const c10::IValue>{});
  const Draws draws{rows, tops, temperatures, least, seeds, choices, positions};
  draws.check(logits);
  const int64_t num_rows = rows.size(0), size = logits.size(1);
  const auto kernel = noisy_best_kernel();
  const std::vector<Greatest> best = greatest_of_rows(
      num_rows, (size + kDrawStep - 1) / kDrawStep, num_rows * size, kDearElements,
      [&](int64_t row, int64_t first, int64_t end) {
        return kernel(draws.row(logits, row, purpose), first * kDrawStep, std::min(size, end * kDrawStep));
      });
  at::Tensor tokens = at::empty({num_rows}, at::kLong);
  for (int64_t row = 0; row < num_rows; ++row)
    tokens.mutable_data_ptr<int64_t>()[row] = std::max<int64_t>(0, best[row].index);
  return tokens;
}

// Of each row the sum of exp(score) in units of 2^-40, scores none above 0: fp32 [S, V] -> int64 [S].
at::Tensor total_mass(const at::Tensor& scores) {
  RECORD_FUNCTION("tokenloom::total_mass", c10::ArrayRef<const c10::IValue>{});
  TORCH_CHECK(scores.dim() == 2 && scores.scalar_type() == at::kFloat && scores.device().is_cpu() &&
                  scores.is_contiguous(),
              "scores must be float32 with 2 dimensions and contiguous");
  const int64_t num_rows = scores.size(0), size = scores.size(1);
  at::Tensor total = at::empty({num_rows}, scores.options().dtype(at::kLong));
  const float* from = scores.const_data_ptr<float>();
  int64_t* to = total.mutable_data_ptr<int64_t>();
  const auto kernel = mass_of_kernel();
  by_rows(num_rows, scores.numel(), kDearElements, [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) to[i] = kernel(from + i * size, size);
  });
  return total;
}

}  // namespace
}  // namespace tl
