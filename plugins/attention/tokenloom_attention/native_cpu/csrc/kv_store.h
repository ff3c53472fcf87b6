// Writing to the KV cache: new tokens into the word layout of attention.h, and slots from place to place.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.h"

namespace tl::attention {

// One layer's cache tensors; scales are null unless int8 is stored.
struct Cache {
  char* keys;
  char* values;
  float* key_scales;
  float* value_scales;
};

// New keys and values [T, Hkv, D] of the context's dtype; strides count elements.
struct NewTokens {
  const char* keys;
  const char* values;
  int64_t key_token_stride, key_head_stride, value_token_stride, value_head_stride;
  const int64_t* slots;  // negative: not stored
};

void write_token(const Sizes& sizes, const Cache& cache, const NewTokens& tokens, int64_t token);

// Copies slots as if all sources had been read first.
void copy_slots(const Sizes& sizes, const Cache& cache, const int64_t* source, const int64_t* target, int64_t count);

}  // namespace tl::attention
