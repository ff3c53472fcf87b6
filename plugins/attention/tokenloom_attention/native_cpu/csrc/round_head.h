// One head of a token's keys or values as int8.
#pragma once

#include <tokenloom/isa.h>

// Symmetric, absmax / 127, to the nearest, ties to even: dim numbers, bf16 or fp32, become as many codes. Returns the
// scale. With NaN or infinity among the numbers that is NaN: all of them come back as such.
TL_DECLARE_KERNEL(float, round_head, (const char* source, bool is_bf16, int dim, int8_t* target))
