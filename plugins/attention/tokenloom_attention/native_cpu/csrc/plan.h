// Cuts a step into items of work, once per step and KV group.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.h"

namespace tl::attention {

struct Plan {
  std::vector<Item> items;             // the most expensive first
  std::vector<int32_t> rows;           // token numbers, which items refer to
  std::vector<int32_t> token_request;  // [T]
  std::vector<int32_t> partial_begin;  // [T + 1]
  std::vector<int32_t> combined;       // tokens whose result has several parts
  std::vector<int32_t> blank;          // tokens of empty sequences: their result is zero
  int64_t num_keys = 0;                // keys that all items read, for one KV head
};

// num_threads: how many will share the items. is_deterministic: keep each token's result independent of the others,
// bit for bit, which forbids to split a sequence by the load of the step.
Plan make_plan(const Sizes& sizes, const Step& step, int num_threads, bool is_deterministic);

}  // namespace tl::attention
