// Memory for the choice of a token: the tokens that are left after filters, at most all of a row.
#pragma once
#include "kernels/kernels.h"

enum { CHUNK = 32 };  // numbers that are read together, as many as a word of a mask has bits

struct SampleScratch {
  int64_t *weights, *copy;
  float* x;
  int32_t* ids;
  float* numbers() const { return (float*)weights; }  // the same memory
};

inline constexpr int64_t sample_scratch_places(int64_t size) { return rounded(size < 256 ? 256 : size, CHUNK) + 2 * CHUNK; }

inline constexpr int64_t sample_scratch_bytes(int64_t size) { return 24 * sample_scratch_places(size); }

inline SampleScratch sample_scratch(uint8_t* memory, int64_t size) {
  const int64_t places = sample_scratch_places(size);
  int64_t* const weights = (int64_t*)memory;
  float* const x = (float*)(weights + 2 * places);
  return {weights, weights + places, x, (int32_t*)(x + places)};
}
