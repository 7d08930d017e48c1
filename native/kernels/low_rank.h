// Products with the factors of adapters (LoRA), whose rows are in float32, bfloat16 or float16. Included by kernels.cpp, once per
// instruction set. Several tokens share the conversion of a factor to float32; each sum has an order of its own, in which neither
// the tokens nor the rows beside it play a part.
#pragma once
#include "kernels/kernels.h"
#include "vector/vector.h"

namespace {

template <int TYPE> TM_INLINE F load_numbers(const void* numbers, int64_t at) {
  if (TYPE == FLOAT32) return load((const float*)numbers + at);
  return TYPE == BFLOAT16 ? bfloat((const uint16_t*)numbers + at) : half((const uint16_t*)numbers + at);
}

// Products of N rows of A and T tokens; N * T is 4 at most, since the sums of 4 are 8 of 16 registers with AVX2, and enough to hide
// the time of a product. Sums are in 16 lanes, which are added at the end.
template <int TYPE, int N, int T> TM_INLINE void dots(const LowerJob& job, int row, const int* tokens) {
  F sums[N][T];
  const float* x[T];
  TM_UNROLL for (int t = 0; t < T; t++) x[t] = job.x + (int64_t)tokens[t] * job.k;
  TM_UNROLL for (int n = 0; n < N; n++)
    TM_UNROLL for (int t = 0; t < T; t++) sums[n][t] = set1(0);
  for (int i = 0; i < job.k; i += 16) {
    TM_UNROLL for (int n = 0; n < N; n++) {
      const F factors = load_numbers<TYPE>(job.a, (int64_t)(row + n) * job.k + i);
      TM_UNROLL for (int t = 0; t < T; t++) sums[n][t] = fma(factors, load(x[t] + i), sums[n][t]);
    }
  }
  TM_UNROLL for (int n = 0; n < N; n++)
    TM_UNROLL for (int t = 0; t < T; t++) job.out[tokens[t] * job.stride + row + n] = reduce_sum(sums[n][t]);
}

template <int TYPE, int T> TM_INLINE void lower_tokens(const LowerJob& job, const int* tokens) {
  constexpr int N = 4 / T;
  int row = job.from;
  for (; row + N <= job.to; row += N) dots<TYPE, N, T>(job, row, tokens);
  for (; row < job.to; row++) dots<TYPE, 1, T>(job, row, tokens);
}

template <int TYPE> void lower_all(const LowerJob& job) {
  int t = 0;
  for (; t + 4 <= job.count; t += 4) lower_tokens<TYPE, 4>(job, job.tokens + t);
  for (; t + 2 <= job.count; t += 2) lower_tokens<TYPE, 2>(job, job.tokens + t);
  if (t < job.count) lower_tokens<TYPE, 1>(job, job.tokens + t);
}

void lower(const LowerJob& job) {
  if (job.type == FLOAT32) lower_all<FLOAT32>(job);
  else if (job.type == BFLOAT16) lower_all<BFLOAT16>(job);
  else lower_all<FLOAT16>(job);
}

// A row of B is summed over the rank in order.
template <int TYPE, int T> TM_INLINE void raise_tokens(const RaiseJob& job, const int* tokens) {
  const float* lowered[T];
  TM_UNROLL for (int t = 0; t < T; t++) lowered[t] = job.lowered + tokens[t] * job.lowered_stride;
  for (int row = 0; row < job.num_rows; row += TILE) {
    F sums[T];
    TM_UNROLL for (int t = 0; t < T; t++) sums[t] = set1(0);
    for (int r = 0; r < job.rank; r++) {
      const F factors = load_numbers<TYPE>(job.b, (int64_t)(row * job.rank + r * TILE));
      TM_UNROLL for (int t = 0; t < T; t++) sums[t] = fma(factors, set1(lowered[t][r]), sums[t]);
    }
    TM_UNROLL for (int t = 0; t < T; t++) {
      float* out = job.out + (tokens[t] - job.first) * job.stride + row;
      store(out, fma(sums[t], set1(job.scale), load(out)));
    }
  }
}

template <int TYPE> void raise_all(const RaiseJob& job) {
  int t = 0;
  for (; t + 4 <= job.count; t += 4) raise_tokens<TYPE, 4>(job, job.tokens + t);
  for (; t + 2 <= job.count; t += 2) raise_tokens<TYPE, 2>(job, job.tokens + t);
  if (t < job.count) raise_tokens<TYPE, 1>(job, job.tokens + t);
}

void raise(const RaiseJob& job) {
  if (job.type == FLOAT32) raise_all<FLOAT32>(job);
  else if (job.type == BFLOAT16) raise_all<BFLOAT16>(job);
  else raise_all<FLOAT16>(job);
}

}  // namespace
