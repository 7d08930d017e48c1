// Products with the factors of adapters (LoRA), whose rows are in float32, bfloat16 or float16. Included by kernels.cpp, once per
// instruction set.
#pragma once
#include "kernels/kernels.h"
#include "vector/vector.h"

namespace {

template <int TYPE> TM_INLINE F load_numbers(const void* numbers, int64_t at) {
  if (TYPE == FLOAT32) return load((const float*)numbers + at);
  return TYPE == BFLOAT16 ? bfloat((const uint16_t*)numbers + at) : half((const uint16_t*)numbers + at);
}

// The products of N rows of A with one x, k a multiple of 16. Each row is summed in 16 lanes, which are added at the end, so that
// the rows beside it change nothing.
template <int TYPE, int N> TM_INLINE void dots(const void* a, int64_t first, const float* x, int k, float* out) {
  F sums[N];
  TM_UNROLL for (int n = 0; n < N; n++) sums[n] = set1(0);
  for (int i = 0; i < k; i += 16) {
    const F inputs = load(x + i);
    TM_UNROLL for (int n = 0; n < N; n++) sums[n] = fma(load_numbers<TYPE>(a, first + (int64_t)n * k + i), inputs, sums[n]);
  }
  TM_UNROLL for (int n = 0; n < N; n++) out[n] = reduce_sum(sums[n]);
}

constexpr int ROWS_TOGETHER = 4;  // their sums are 8 registers of AVX2, enough to hide the time of a product

template <int TYPE>
void lower_rows(const void* a, int k, const float* x, int count, int from, int to, float* out, int64_t stride) {
  for (; from < to; from += ROWS_TOGETHER) {
    const int rows = to - from < ROWS_TOGETHER ? to - from : ROWS_TOGETHER;
    for (int t = 0; t < count; t++) {
      const float* inputs = x + (int64_t)t * k;
      float* products = out + t * stride + from;
      if (rows == ROWS_TOGETHER) {
        dots<TYPE, ROWS_TOGETHER>(a, (int64_t)from * k, inputs, k, products);
      } else {
        for (int n = 0; n < rows; n++) dots<TYPE, 1>(a, (int64_t)(from + n) * k, inputs, k, products + n);
      }
    }
  }
}

void lower(const void* a, int type, int k, const float* x, int count, int from, int to, float* out, int64_t stride) {
  if (type == FLOAT32) lower_rows<FLOAT32>(a, k, x, count, from, to, out, stride);
  else if (type == BFLOAT16) lower_rows<BFLOAT16>(a, k, x, count, from, to, out, stride);
  else lower_rows<FLOAT16>(a, k, x, count, from, to, out, stride);
}

// A row of B is summed over the rank in order.
template <int TYPE> void raise_rows(const float* lowered, int rank, const void* b, float scale, float* out, int rows) {
  for (int row = 0; row < rows; row += TILE) {
    F sums = set1(0);
    for (int r = 0; r < rank; r++) sums = fma(load_numbers<TYPE>(b, (int64_t)(row * rank + r * TILE)), set1(lowered[r]), sums);
    store(out + row, fma(sums, set1(scale), load(out + row)));
  }
}

void raise(const float* lowered, int rank, const void* b, int type, float scale, float* out, int rows) {
  if (type == FLOAT32) raise_rows<FLOAT32>(lowered, rank, b, scale, out, rows);
  else if (type == BFLOAT16) raise_rows<BFLOAT16>(lowered, rank, b, scale, out, rows);
  else raise_rows<FLOAT16>(lowered, rank, b, scale, out, rows);
}

}  // namespace
