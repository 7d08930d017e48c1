// What layers with states compute beside their matrices: short convolutions over the tokens of a channel, and the recurrence of
// linear attention. Included by kernels.cpp, once per instruction set.
//
// Channels, and the columns of a state, do not depend on each other: they lie in lanes. Sums over taps and over keys have one order
// everywhere, and tokens follow each other, so that chunks change nothing.
#pragma once
#include "kernels/kernels.h"
#include "kernels/rows.h"
#include "vector/vector.h"

namespace {

// The first n numbers in the first lanes, and zeros behind them: another thread may be writing what follows.
TM_INLINE F load_first(const float* p, int n) {
  if (n >= 16) return load(p);
  alignas(64) float lanes[16] = {};
  memcpy(lanes, p, sizeof(float) * (size_t)n);
  return load(lanes);
}
TM_INLINE void store_first(float* p, F a, int n) {
  if (n >= 16) return store(p, a);
  alignas(64) float lanes[16];
  store(lanes, a);
  memcpy(p, lanes, sizeof(float) * (size_t)n);
}


// Brings a row to length 1, then multiplies it.
void make_unit(float* row, int n, float eps, float scale) {
  F squares = set1(0);
  for (int i = 0; i < n; i += 16) {
    const F x = load_first(row + i, n - i);
    squares = fma(x, x, squares);
  }
  const F factor = set1(1.0f / std::sqrt(reduce_sum(squares) + eps));
  for (int i = 0; i < n; i += 16)
    store_first(row + i, mul(mul(load_first(row + i, n - i), factor), set1(scale)), n - i);
}

// From the last token to the first: a result takes the place of an input that only later tokens read.
void convolve(const ConvolutionJob& job) {
  const int before = job.taps - 1, n = job.channels;
  for (int t = job.count; t-- > 0;) {
    float* row = job.x + t * job.stride;
    for (int i = 0; i < n; i += 16) {
      F sum = set1(0);
      for (int tap = 0, from = t - before; tap < job.taps; tap++, from++) {
        const float* input = from < 0 ? job.before + (int64_t)(from + before) * n : job.x + from * job.stride;
        sum = fma(load_first(input + i, n - i), load_first(job.weight + tap * job.weight_stride + i, n - i), sum);
      }
      if (job.bias) sum = add(sum, load_first(job.bias + i, n - i));
      store_first(row + i, activation(sum, job.activation, 0, 0), n - i);
    }
    if (job.unit) make_unit(row, n, job.eps, job.scale);
  }
}

// The decays and strengths of up to 16 tokens of a head: a token in each lane.
void find_decays(const RecurrenceJob& job, int first, int count, float* decays, float* strengths) {
  alignas(64) float inputs[2][16] = {};
  for (int t = 0; t < count; t++) {
    inputs[0][t] = job.decay[(first + t) * job.stride];
    if (job.strength) inputs[1][t] = job.strength[(first + t) * job.stride];
  }
  F step = softplus(add(load(inputs[0]), set1(job.dt_bias)));
  if (!job.strength) step = min(max(step, set1(job.min_step)), set1(job.max_step));
  const F rate = exp(set1(job.a_log));
  store(decays, exp(sub(set1(0), mul(rate, step))));
  store(strengths, job.strength ? mul(activation(load(inputs[1]), SIGMOID, 0, 0), set1(job.scale)) : step);
}

// The decays of a token for each number of the key.
void find_key_decays(const RecurrenceJob& job, int token, float* decays) {
  const float* inputs = job.decay + token * job.stride;
  const F rate = exp(set1(job.a_log));
  for (int k = 0; k < job.keys; k += 16) {
    const int n = job.keys - k;
    const F step = softplus(add(load_first(inputs + k, n), load_first(job.dt_biases + k, n)));
    store_first(decays + k, exp(sub(set1(0), mul(rate, step))), n);
  }
}

// N vectors of columns of a row of the state; without WHOLE the last one has fewer than 16.
template <int N> struct Columns {
  F part[N];
};
template <int N, bool WHOLE> TM_INLINE Columns<N> load_columns(const float* p, int n) {
  Columns<N> row;
  TM_UNROLL for (int i = 0; i < N; i++) row.part[i] = WHOLE ? load(p + 16 * i) : load_first(p + 16 * i, n - 16 * i);
  return row;
}
template <int N, bool WHOLE> TM_INLINE void store_columns(float* p, const Columns<N>& row, int n) {
  TM_UNROLL for (int i = 0; i < N; i++) {
    if (WHOLE) store(p + 16 * i, row.part[i]);
    else store_first(p + 16 * i, row.part[i], n - 16 * i);
  }
}
template <int N> TM_INLINE Columns<N> zero_columns() {
  Columns<N> row;
  TM_UNROLL for (int i = 0; i < N; i++) row.part[i] = set1(0);
  return row;
}
template <int N> TM_INLINE void add_times(Columns<N>& sums, const Columns<N>& row, F factor) {
  TM_UNROLL for (int i = 0; i < N; i++) sums.part[i] = fma(row.part[i], factor, sums.part[i]);
}

// keyT state of one token: even and odd keys in sums of their own, which do not wait for each other.
template <int N, bool WHOLE> TM_INLINE Columns<N> recall(const RecurrenceJob& job, const float* state, const float* key, int n) {
  Columns<N> even = zero_columns<N>(), odd = zero_columns<N>();
  const int keys = job.keys, columns = job.columns;
  int k = 0;
  for (; k + 2 <= keys; k += 2, state += 2 * columns) {
    add_times(even, load_columns<N, WHOLE>(state, n), set1(key[k]));
    add_times(odd, load_columns<N, WHOLE>(state + columns, n), set1(key[k + 1]));
  }
  if (k < keys) add_times(even, load_columns<N, WHOLE>(state, n), set1(key[k]));
  TM_UNROLL for (int i = 0; i < N; i++) even.part[i] = add(even.part[i], odd.part[i]);
  return even;
}

// All tokens pass through these columns of the state, which stay in the first-level cache.
template <int N, bool WHOLE> void recur_columns(const RecurrenceJob& job, int column, int n) {
  alignas(64) float decays[16], strengths[16];
  const int keys = job.keys, columns = job.columns;  // not read again after every store
  for (int t = 0; t < job.count; t++) {
    if (t % 16 == 0) find_decays(job, t, job.count - t < 16 ? job.count - t : 16, decays, strengths);
    const float *query = job.query + t * job.stride, *key = job.key + t * job.stride;
    float *value = job.value + t * job.stride + column, *state = job.state + column;
    const F decay = set1(decays[t % 16]), strength = set1(strengths[t % 16]);
    const Columns<N> given = load_columns<N, WHOLE>(value, n);
    Columns<N> change = given, out = zero_columns<N>();
    if (job.strength) {
      const Columns<N> recalled = recall<N, WHOLE>(job, state, key, n);
      TM_UNROLL for (int i = 0; i < N; i++) change.part[i] = sub(given.part[i], mul(recalled.part[i], decay));
    }
    TM_UNROLL for (int i = 0; i < N; i++) change.part[i] = mul(change.part[i], strength);
    for (int k = 0; k < keys; k++, state += columns) {
      Columns<N> row = load_columns<N, WHOLE>(state, n);
      TM_UNROLL for (int i = 0; i < N; i++) row.part[i] = mul(row.part[i], decay);
      add_times(row, change, set1(key[k]));
      store_columns<N, WHOLE>(state, row, n);
      add_times(out, row, set1(query[k]));
    }
    if (job.skip != 0) add_times(out, given, set1(job.skip));
    store_columns<N, WHOLE>(value, out, n);
  }
}

// As recur_columns by the delta rule, where each row of the state has a decay of its own.
template <int N, bool WHOLE> void recur_decayed(const RecurrenceJob& job, int column, int n) {
  alignas(64) float decays[MAX_KEYS], keys_decayed[MAX_KEYS], unused[16], strengths[16];
  const int keys = job.keys, columns = job.columns;
  for (int t = 0; t < job.count; t++) {
    if (t % 16 == 0) find_decays(job, t, job.count - t < 16 ? job.count - t : 16, unused, strengths);
    find_key_decays(job, t, decays);
    const float *query = job.query + t * job.stride, *key = job.key + t * job.stride;
    float *value = job.value + t * job.stride + column, *state = job.state + column;
    for (int k = 0; k < keys; k++) keys_decayed[k] = key[k] * decays[k];
    const Columns<N> recalled = recall<N, WHOLE>(job, state, keys_decayed, n);
    Columns<N> change = load_columns<N, WHOLE>(value, n), out = zero_columns<N>();
    TM_UNROLL for (int i = 0; i < N; i++)
      change.part[i] = mul(sub(change.part[i], recalled.part[i]), set1(strengths[t % 16]));
    for (int k = 0; k < keys; k++, state += columns) {
      Columns<N> row = load_columns<N, WHOLE>(state, n);
      TM_UNROLL for (int i = 0; i < N; i++) row.part[i] = mul(row.part[i], set1(decays[k]));
      add_times(row, change, set1(key[k]));
      store_columns<N, WHOLE>(state, row, n);
      add_times(out, row, set1(query[k]));
    }
    store_columns<N, WHOLE>(value, out, n);
  }
}

void recur(const RecurrenceJob& job) {
  int column = 0;
  if (job.dt_biases) {
    for (; column + 32 <= job.columns; column += 32) recur_decayed<2, true>(job, column, 32);
    if (column + 16 <= job.columns) recur_decayed<1, true>(job, column, 16), column += 16;
    if (column < job.columns) recur_decayed<1, false>(job, column, job.columns - column);
    return;
  }
  for (; column + 32 <= job.columns; column += 32) recur_columns<2, true>(job, column, 32);
  if (column + 16 <= job.columns) recur_columns<1, true>(job, column, 16), column += 16;
  if (column < job.columns) recur_columns<1, false>(job, column, job.columns - column);
}

}  // namespace
