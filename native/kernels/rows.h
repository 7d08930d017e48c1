// Functions of single rows: norms, activations, rotary embedding, softcap, argmax, rows of the cache, and the merge of partial
// softmaxes. Included by kernels.cpp, once per instruction set.
#pragma once
#include "kernels/kernels.h"
#include "vector/vector.h"

namespace {

// x and y have room for a multiple of 16 floats. x is zero behind entry n. The sum of squares of the last n % 16 entries is
// added one by one.
void norm(const float* x, float* y, int n, const float* weight, const float* bias, float eps, int centred) {
  float mean = 0;
  if (centred) {
    F total = set1(0);
    for (int i = 0; i < n; i += 16) total = add(total, load(x + i));
    mean = reduce_sum(total) / (float)n;
  }
  F squares = set1(0);
  const int full = n / 16 * 16;
  for (int i = 0; i < full; i += 16) {
    const F d = sub(load(x + i), set1(mean));
    squares = fma(d, d, squares);
  }
  float total = reduce_sum(squares);
  for (int i = full; i < n; i++) total += (x[i] - mean) * (x[i] - mean);
  const float factor = 1.0f / std::sqrt(total / (float)n + eps);
  for (int i = 0; i < full; i += 16) {
    F r = mul(mul(sub(load(x + i), set1(mean)), set1(factor)), load(weight + i));
    if (bias) r = add(r, load(bias + i));
    store(y + i, r);
  }
  for (int i = full; i < n; i++) y[i] = (x[i] - mean) * factor * weight[i] + (bias ? bias[i] : 0.0f);
}

// Off by at most 1.1 units in the last place, also near 0, where 1 - 2 / (e**2x + 1) is not: there x plus x**3 times a polynomial in
// x**2, fitted to the relative error (1.4e-8). The same bits in every build, and wherever a number stands; NaN stays NaN.
TM_INLINE F tanh(F x) {
  const float factors[] = {2.0112022757530212e-2f, -5.356711894273758e-2f, 1.3329245150089264e-1f, -3.3333197236061096e-1f};
  const F size = abs(x), square = mul(x, x);
  F series = set1(-5.155458580702543e-3f);
  for (float factor : factors) series = fma(series, square, set1(factor));
  const F near = fma(mul(x, square), series, x);
  const F far = sub(set1(1), div(set1(2), add(exp(add(size, size)), set1(1))));
  return where_less(set1(0.7f), size, where_less(x, set1(0), sub(set1(0), far), far), near);
}

// xIELU (arXiv 2411.13010) with beta 0.5: alpha of positive inputs, alpha of negative inputs. e**x - 1 - x is x**2 times a
// polynomial from -1 to 0, fitted to the relative error (5.3e-10).
TM_INLINE F xielu(F x, float positive, float negative) {
  const float factors[] = {1.8817823729477823e-4f, 1.382074668072164e-3f, 8.330962620675564e-3f,
                           4.1666269302368164e-2f, 1.66666641831398e-1f,  0.5f};
  const F square = mul(x, x), half = mul(x, set1(0.5f));
  F series = set1(1.687978146946989e-5f);
  for (float factor : factors) series = fma(series, x, set1(factor));
  const F below = where_less(x, set1(-1), sub(sub(exp(x), set1(1)), x), mul(square, series));
  return where_less(set1(0), x, fma(square, set1(positive), half), fma(below, set1(negative), half));
}

// (up + 1) * gate * sigmoid(alpha * gate), with gate <= limit and |up| <= limit, as gpt-oss has it.
TM_INLINE F swiglu(F gate, F up, float alpha, float limit) {
  gate = min(gate, set1(limit)), up = max(min(up, set1(limit)), set1(-limit));
  return mul(add(up, set1(1)), div(gate, add(set1(1), exp(mul(gate, set1(-alpha))))));
}

// x times the normal distribution's probability of less than x: max(x, 0) - |x| * p, where p, the probability of less than -|x|, is
// exp(-x**2 / 2) times a polynomial in 1 / (1 + 0.3 |x|). The polynomial is fitted to p's relative error, at most 6e-8 up to 13; in
// float32 a result is off by at most 2.4e-7, where the formula with erf of a C library is off by 4.5e-7.
TM_INLINE F gelu(F x) {
  const float factors[] = {-1.6864363849163055e-1f, 2.2757820785045624e-1f, -7.526575028896332e-2f, 1.4167584478855133e-1f,
                           9.505106508731842e-2f,   1.2182589620351791e-1f, 1.1950099468231201e-1f, 6.383218988048611e-6f};
  const F size = abs(x), k = div(set1(1), fma(size, set1(0.3f), set1(1)));
  F p = set1(3.827102482318878e-2f);
  for (float factor : factors) p = fma(p, k, set1(factor));
  p = mul(p, exp(mul(mul(size, size), set1(-0.5f))));
  return sub(max(x, set1(0)), mul(size, p));
}

// log(1 + e**x) = max(x, 0) + log(1 + y) with y = e**-|x|. log(1 + y) is twice the inverse hyperbolic tangent of s = y / (2 + y),
// whose series in s**2 <= 1/9 is exact to a float after eight terms.
TM_INLINE F softplus(F x) {
  const F y = exp(sub(set1(0), abs(x))), s = div(y, add(set1(2), y)), square = mul(s, s);
  F series = set1(1.0f / 15);
  for (int n = 13; n > 0; n -= 2) series = fma(series, square, set1(1.0f / (float)n));
  return add(max(x, set1(0)), mul(add(s, s), series));
}

TM_INLINE F activation(F x, int kind, float a, float b) {
  if (kind == SILU) return div(x, add(set1(1), exp(sub(set1(0), x))));
  if (kind == SIGMOID) return div(set1(1), add(set1(1), exp(sub(set1(0), x))));
  if (kind == RELU) return max(x, set1(0));
  if (kind == RELU2) return mul(max(x, set1(0)), max(x, set1(0)));
  if (kind == XIELU) return xielu(x, a, b);
  if (kind == GELU_TANH) {  // x / 2 * (1 + tanh(inner)) = x * sigmoid(2 * inner)
    const F inner = fma(mul(set1(0.044715f), mul(x, x)), x, x);
    return div(x, add(set1(1), exp(mul(inner, set1(-1.5957691216057308f)))));
  }
  if (kind == GELU) return gelu(x);
  if (kind == SOFTPLUS) return softplus(x);
  return x;
}

void activate(float* x, const float* up, int n, int kind, float a, float b) {  // n is a multiple of 16
  for (int i = 0; i < n; i += 16) {
    if (kind == SWIGLU) {
      store(x + i, swiglu(load(x + i), load(up + i), a, b));
      continue;
    }
    const F value = activation(load(x + i), kind, a, b);
    store(x + i, up ? mul(value, load(up + i)) : value);
  }
}

// Rotary embedding of the pairs (i, i + half). Entries behind the last full vector are computed one by one, by the same
// operations.
void rotate(float* x, const float* cosines, const float* sines, int half) {
  int i = 0;
  for (; i + 16 <= half; i += 16) {
    const F a = load(x + i), b = load(x + half + i), c = load(cosines + i), s = load(sines + i);
    store(x + i, sub(mul(a, c), mul(b, s)));
    store(x + half + i, add(mul(b, c), mul(a, s)));
  }
  for (; i < half; i++) {
    const float a = x[i], b = x[half + i];
    x[i] = a * cosines[i] - b * sines[i];
    x[half + i] = b * cosines[i] + a * sines[i];
  }
}

TM_INLINE F capped(F x, float cap) { return mul(tanh(div(x, set1(cap))), set1(cap)); }

void softcap(float* x, int n, float cap) {
  int i = 0;
  for (; i + 16 <= n; i += 16) store(x + i, capped(load(x + i), cap));
  if (i == n) return;
  float last[16] = {};
  std::copy(x + i, x + n, last);
  store(last, capped(load(last), cap));
  std::copy(last, last + n - i, x + i);
}

void add_rows(float* x, const float* y, int n) {
  int i = 0;
  for (; i + 16 <= n; i += 16) store(x + i, add(load(x + i), load(y + i)));
  for (; i < n; i++) x[i] += y[i];
}

// The last n % 16 numbers are computed one by one, by the same operations.
void add_weighted(float* x, const float* y, float weight, int n) {
  int i = 0;
  for (; i + 16 <= n; i += 16) store(x + i, add(load(x + i), mul(load(y + i), set1(weight))));
  for (; i < n; i++) x[i] += weight * y[i];
}

// First the maximum of every block of at most 512 numbers, then its index in the block with the largest. Products with zero are
// summed to find NaN: they are zero unless a number is infinite or NaN.
int64_t argmax(const float* x, int64_t n) {
  constexpr int64_t BLOCK = 512;
  int64_t index, begin = 0;
  float best = -INFINITY;
  F not_finite[4] = {set1(0), set1(0), set1(0), set1(0)};  // zero unless a number is infinite or NaN
  for (int64_t from = 0; from < n; from += BLOCK) {
    const int64_t end = n < from + BLOCK ? n : from + BLOCK;
    F max_lanes[4] = {set1(-INFINITY), set1(-INFINITY), set1(-INFINITY), set1(-INFINITY)};
    int64_t i = from;
    for (; i + 64 <= end; i += 64)
      TM_UNROLL for (int j = 0; j < 4; j++) {
        const F part = load(x + i + 16 * j);
        max_lanes[j] = max(max_lanes[j], part), not_finite[j] = fma(part, set1(0), not_finite[j]);
      }
    float block_max = reduce_max(max(max(max_lanes[0], max_lanes[1]), max(max_lanes[2], max_lanes[3])));
    bool has_nan = false;
    for (; i < end; i++) block_max = x[i] > block_max ? x[i] : block_max, has_nan |= x[i] != x[i];
    if (block_max > best) best = block_max, begin = from;
    if (has_nan) not_finite[0] = set1(NAN);
  }
  if (reduce_sum(add(add(not_finite[0], not_finite[1]), add(not_finite[2], not_finite[3]))) != 0)
    for (int64_t i = 0; i < n; i++)
      if (x[i] != x[i]) return i;
  for (index = begin; index + 1 < n && x[index] != best; index++) {
  }
  return index;
}

void store_kv(const float* x, int n, int format, void* row, float* scale) {  // x is padded with zeros to a multiple of 16
  if (format == AS_FLOAT32) {
    memcpy(row, x, sizeof(float) * (size_t)n);
    return;
  }
  float largest = 0;
  if (format == AS_INT8) {
    for (int i = 0; i < n; i += 16) {
      const float part = reduce_max_abs(load(x + i), set1(0));  // NaN if there is one
      largest = largest >= part || largest != largest ? largest : part;
    }
    *scale = largest / 127.0f;
  }
  const float inverse = format == AS_INT8 && *scale > 0 ? 127.0f / largest : 0.0f;
  for (int i = 0; i < n; i += 16) {
    alignas(64) uint8_t part[32];
    const int size = format_bytes(format);
    if (format == AS_INT8)
      to_codes((int8_t*)part, to_int(mul(load(x + i), set1(inverse))));
    else if (format == AS_FLOAT16)
      store_half((uint16_t*)part, load(x + i));
    else
      to_bfloat((uint16_t*)part, load(x + i));
    memcpy((uint8_t*)row + i * size, part, (size_t)((n - i < 16 ? n - i : 16) * size));
  }
}

void merge(float* max_score, float* exp_sum, float* value_sum, float max_score2, float exp_sum2, const float* value_sum2,
           int n) {
  if (exp_sum2 == 0) return;
  if (*exp_sum == 0) {
    *max_score = max_score2, *exp_sum = exp_sum2;
    memcpy(value_sum, value_sum2, sizeof(float) * (size_t)n);
    return;
  }
  const float largest = *max_score > max_score2 ? *max_score : max_score2;
  float shifts[2] = {*max_score - largest, max_score2 - largest};
  alignas(64) float lanes[16] = {shifts[0], shifts[1]};
  store(lanes, exp(load(lanes)));
  const F f1 = set1(lanes[0]), f2 = set1(lanes[1]);
  for (int i = 0; i < n; i += 16) store(value_sum + i, fma(load(value_sum2 + i), f2, mul(load(value_sum + i), f1)));
  *exp_sum = exp_sum2 * lanes[1] + *exp_sum * lanes[0];
  *max_score = largest;
}

}  // namespace
