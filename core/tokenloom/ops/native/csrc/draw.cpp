#include "draw.h"

#include <limits>

#include "philox.h"

namespace tl::TL_ISA {
namespace {

constexpr float kLeast = -std::numeric_limits<float>::infinity();
// Bounds of the noise, with room for rounding. The row's greatest logit has the score 0, so what cannot come up to
// kLeastNoise even with the most noise never wins.
constexpr float kLeastNoise = -2.9f, kMostNoise = 23.0f;

}  // namespace

Greatest noisy_best(const NoisyRow& row, int64_t begin, int64_t end) {
  constexpr int kWidth = 4 * Vec::kLanes;
  static_assert(kDrawStep % kWidth == 0, "parts begin where a round does");
  const Vec top = Vec::all(row.top), temperature = Vec::all(row.temperature);
  float best = kLeast, filled[kWidth], scores[kWidth], sums[kWidth];
  int64_t found = -1;
  for (int64_t first = begin; first < end; first += kWidth) {
    const float* logits = row.logits + first;
    if (end - first < kWidth) {
      for (int64_t i = 0; i < kWidth; ++i) filled[i] = i < end - first ? logits[i] : kLeast;
      logits = filled;
    }
    Vec x[4];
    for (int i = 0; i < 4; ++i) x[i] = Vec::load(logits + i * Vec::kLanes);
    const float most = Vec::max(Vec::max(x[0], x[1]), Vec::max(x[2], x[3])).largest();
    const float wanted = best > kLeastNoise ? best : kLeastNoise;
    if ((most - row.top) / row.temperature < wanted - kMostNoise) continue;
    Vec noise[4];
    gumbel_noise(row.key, first, noise);
    for (int i = 0; i < 4; ++i) {
      const Vec score = (x[i] - top) / temperature;
      score.store(scores + i * Vec::kLanes);
      x[i] = score + noise[i];
      x[i].store(sums + i * Vec::kLanes);
    }
    if (Vec::max(Vec::max(x[0], x[1]), Vec::max(x[2], x[3])).largest() <= best) continue;
    for (int i = 0; i < kWidth; ++i) {
      if (sums[i] > best && !(scores[i] < row.least)) best = sums[i], found = first + i;
    }
  }
  return {best, found};
}

}  // namespace tl::TL_ISA
