// The modes that each thread sets at the beginning of a step and sets back at its end. Included by kernels.cpp, once per
// instruction set.
//
// Subnormal numbers count as zero within a step. The instructions that multiply bfloat16 (AVX512-BF16 and AMX) have no other
// mode, and all builds compute the same bits.
#pragma once
#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "products/products_amx.h"

namespace {

uint64_t read_float_mode() {
#if defined(__x86_64__)
  return _mm_getcsr();
#elif defined(__aarch64__)
  uint64_t mode;
  __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
#else
  return 0;
#endif
}

void set_float_mode(uint64_t mode) {
#if defined(__x86_64__)
  _mm_setcsr((unsigned)mode);
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0" : : "r"(mode));
#else
  (void)mode;
#endif
}

#if defined(__aarch64__)
constexpr uint64_t SUBNORMALS_ARE_ZERO = 1 << 24;  // FZ
#else
constexpr uint64_t SUBNORMALS_ARE_ZERO = 0x8040;  // FTZ and DAZ
#endif

// The mode that end_step sets back.
uint64_t begin_step() {
  const uint64_t mode = read_float_mode();
  set_float_mode(mode | SUBNORMALS_ARE_ZERO);
  begin_tiles();
  return mode;
}

void end_step(uint64_t mode) {
  end_tiles();
  set_float_mode(mode);
}

}  // namespace
