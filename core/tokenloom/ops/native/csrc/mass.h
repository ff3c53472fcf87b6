// Probabilities relative to a row's best token, as whole numbers; see `tokenloom.sampling.filtering`.
#pragma once

#include <tokenloom/isa.h>

// The sum of exp(score) over scores[0:size], each in whole units of 2^-40. Scores are none above 0; NaN counts as 0.
TL_DECLARE_KERNEL(int64_t, mass_of, (const float* scores, int64_t size))
