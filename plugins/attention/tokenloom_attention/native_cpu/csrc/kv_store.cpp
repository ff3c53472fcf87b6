#include "kv_store.h"

#include <cstring>

#include "round_head.h"

namespace tl::attention {
namespace {

// Where one slot of one KV head lies. Elements are kPack to a word: a key's words are key_tile() words apart, and of
// the words of values it owns one element each.
struct Place {
  char* key;
  char* value;
  float* key_scale;
  float* value_scale;
};

Place place_of(const Sizes& sizes, const Cache& cache, int64_t slot, int kv_head) {
  const int pack = sizes.pack(), offset = static_cast<int>(slot % sizes.block_size);
  const int64_t block = slot / sizes.block_size * sizes.num_kv_heads + kv_head;
  const int64_t scale = block * sizes.block_size + offset;
  return {cache.keys + (block * sizes.key_words() + sizes.key_word(offset)) * 4,
          cache.values + (block * sizes.value_words() + static_cast<int64_t>(offset / pack) * sizes.padded_dim) * 4 +
              offset % pack * (4 / pack),
          cache.key_scales == nullptr ? nullptr : cache.key_scales + scale,
          cache.value_scales == nullptr ? nullptr : cache.value_scales + scale};
}

template <int kBytes>
void spread_key(const Sizes& sizes, const char* source, char* key) {
  const int num_words = sizes.head_dim * kBytes / 4;
  const int64_t step = int64_t{4} * sizes.key_tile();
  for (int i = 0; i < num_words; ++i) std::memcpy(key + i * step, source + i * 4, 4);
}

template <int kBytes>
void spread_value(const Sizes& sizes, const char* source, char* value) {
  for (int d = 0; d < sizes.head_dim; ++d) std::memcpy(value + d * 4, source + d * kBytes, kBytes);
}

}  // namespace

void write_token(const Sizes& sizes, const Cache& cache, const NewTokens& tokens, int64_t token) {
  const int64_t slot = tokens.slots[token];
  if (slot < 0) return;
  const int bytes = sizes.is_bf16 ? 2 : 4;
  const auto round_head = round_head_kernel();
  for (int head = 0; head < sizes.num_kv_heads; ++head) {
    const Place place = place_of(sizes, cache, slot, head);
    const char* key = tokens.keys + (token * tokens.key_token_stride + head * tokens.key_head_stride) * bytes;
    const char* value = tokens.values + (token * tokens.value_token_stride + head * tokens.value_head_stride) * bytes;
    switch (sizes.stored) {
      case Stored::fp32:
        spread_key<4>(sizes, key, place.key);
        spread_value<4>(sizes, value, place.value);
        break;
      case Stored::bf16:
        spread_key<2>(sizes, key, place.key);
        spread_value<2>(sizes, value, place.value);
        break;
      case Stored::int8: {
        int8_t rounded[kMaxInt8HeadDim];
        *place.key_scale = round_head(key, sizes.is_bf16, sizes.head_dim, rounded);
        spread_key<1>(sizes, reinterpret_cast<const char*>(rounded), place.key);
        *place.value_scale = round_head(value, sizes.is_bf16, sizes.head_dim, rounded);
        spread_value<1>(sizes, reinterpret_cast<const char*>(rounded), place.value);
        break;
      }
    }
  }
}

void copy_slots(const Sizes& sizes, const Cache& cache, const int64_t* source, const int64_t* target, int64_t count) {
  const int bytes = 4 / sizes.pack(), num_words = sizes.head_dim / sizes.pack();
  const int64_t step = int64_t{4} * sizes.key_tile(), row = int64_t{2} * sizes.head_dim * bytes;
  const int heads = sizes.num_kv_heads;
  std::vector<char> content(static_cast<size_t>(count * heads * row));
  std::vector<float> scales(cache.key_scales == nullptr ? 0 : static_cast<size_t>(count * heads * 2));
  for (int64_t i = 0; i < count * heads; ++i) {
    const Place from = place_of(sizes, cache, source[i / heads], static_cast<int>(i % heads));
    char* kept = content.data() + i * row;
    for (int w = 0; w < num_words; ++w) std::memcpy(kept + w * 4, from.key + w * step, 4);
    kept += row / 2;
    for (int d = 0; d < sizes.head_dim; ++d) std::memcpy(kept + d * bytes, from.value + d * 4, bytes);
    if (scales.empty()) continue;
    std::memcpy(&scales[i * 2], from.key_scale, 4);
    std::memcpy(&scales[i * 2 + 1], from.value_scale, 4);
  }
  for (int64_t i = 0; i < count * heads; ++i) {
    const Place to = place_of(sizes, cache, target[i / heads], static_cast<int>(i % heads));
    const char* kept = content.data() + i * row;
    for (int w = 0; w < num_words; ++w) std::memcpy(to.key + w * step, kept + w * 4, 4);
    kept += row / 2;
    for (int d = 0; d < sizes.head_dim; ++d) std::memcpy(to.value + d * 4, kept + d * bytes, bytes);
    if (scales.empty()) continue;
    std::memcpy(to.key_scale, &scales[i * 2], 4);
    std::memcpy(to.value_scale, &scales[i * 2 + 1], 4);
  }
}

}  // namespace tl::attention
