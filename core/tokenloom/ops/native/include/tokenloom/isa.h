// Levels of the instruction set, and the choice among copies of a kernel at run time.
//
// A kernel file is compiled once per level, with TL_ISA defined as the level's name and the compiler flags that belong
// to it. Its header is included by that file and by the binding:
//
//     // scale.h
//     #include <tokenloom/isa.h>
//     TL_DECLARE_KERNEL(void, scale, (float* values, int64_t count, float factor))
//
//     // scale.cpp, one of `kernels`
//     #include "scale.h"
//     namespace tl::TL_ISA {
//     void scale(float* values, int64_t count, float factor) { ... }
//     }
//
//     // binding.cpp, one of `sources`
//     tl::scale_kernel()(pointer, count, 2.0f);  // the copy for this processor
//
// Functions that such a header defines outside `namespace tl::TL_ISA` must be TL_INLINE or static.
// Inside a kernel file TL_HAS_AVX512 and TL_HAS_AVX2 tell which intrinsics may be used; without either, write plain C++.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#define TL_X86 1
#include <cpuid.h>
#else
#define TL_X86 0
#endif

// For functions of headers that all levels share: never a call, so never another level's copy.
#define TL_INLINE __attribute__((always_inline)) inline

// avx512 means F, BW, DQ, VL, VNNI and BF16; avx2 means AVX2, FMA and F16C.
#if defined(__AVX512BF16__) && defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define TL_HAS_AVX512 1
#else
#define TL_HAS_AVX512 0
#endif
#if defined(__AVX2__) && defined(__FMA__)
#define TL_HAS_AVX2 1
#else
#define TL_HAS_AVX2 0
#endif

namespace tl {

// amx is avx512 with AMX tiles for bf16: kernel files are compiled for the same flags, and a kernel that has a version with
// tiles asks for the level itself.
enum class Isa { portable = 0, avx2 = 1, avx512 = 2, amx = 3 };

// What this processor and its system can run. Defined once, in ops/native/csrc/isa.cpp, which is part of every extension.
Isa detected_isa();

// What is used: detected_isa(), or less after set_isa(). A lower level is for tests and for measuring.
Isa current_isa();

// Limits the level by name ("portable", "avx2", "avx512", "amx"); false if there is no such level or the processor lacks it.
bool set_isa(const char* name);

const char* isa_name(Isa isa);

}  // namespace tl

#if TL_X86
#define TL_DECLARE_KERNEL(result, name, parameters)                                       \
  namespace tl::portable { result name parameters; }                                      \
  namespace tl::avx2 { result name parameters; }                                          \
  namespace tl::avx512 { result name parameters; }                                        \
  namespace tl {                                                                          \
  using name##_fn = result(*) parameters;                                                 \
  inline name##_fn name##_kernel() {                                                      \
    switch (current_isa()) {                                                              \
      case Isa::amx:                                                                      \
      case Isa::avx512: return &avx512::name;                                             \
      case Isa::avx2: return &avx2::name;                                                 \
      default: return &portable::name;                                                    \
    }                                                                                     \
  }                                                                                       \
  }
#else
#define TL_DECLARE_KERNEL(result, name, parameters)                                       \
  namespace tl::portable { result name parameters; }                                      \
  namespace tl {                                                                          \
  using name##_fn = result(*) parameters;                                                 \
  inline name##_fn name##_kernel() { return &portable::name; }                            \
  }
#endif
