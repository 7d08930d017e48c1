// What happens to single rows of activations between the products, and to rows of the cache. Included by kernels.cpp, once per
// instruction set.
#pragma once
#include "kernels.h"
#include "vec.h"

namespace {

// x and y have room up to a multiple of 16; what lies behind n is zero in x, and in y afterwards.
void norm(const float* x, float* y, int n, const float* weight, const float* bias, float eps, int centred) {
  float mean = 0;
  if (centred) {
    F total = set1(0);
    for (int i = 0; i < n; i += 16) total = add(total, load(x + i));
    mean = sum(total) / (float)n;
  }
  F squares = set1(0);
  const int whole = n / 16 * 16;
  for (int i = 0; i < whole; i += 16) {
    const F d = sub(load(x + i), set1(mean));
    squares = fma(d, d, squares);
  }
  float total = sum(squares);
  for (int i = whole; i < n; i++) total += (x[i] - mean) * (x[i] - mean);
  const float factor = 1.0f / std::sqrt(total / (float)n + eps);
  for (int i = 0; i < whole; i += 16) {
    F r = mul(mul(sub(load(x + i), set1(mean)), set1(factor)), load(weight + i));
    if (bias) r = add(r, load(bias + i));
    store(y + i, r);
  }
  for (int i = whole; i < n; i++) y[i] = (x[i] - mean) * factor * weight[i] + (bias ? bias[i] : 0.0f);
}

TM F tanh_of(F x) {  // 1 - 2 / (e**2x + 1)
  return sub(set1(1), div(set1(2), add(exp(add(x, x)), set1(1))));
}

TM F activation(F x, int kind) {
  if (kind == SILU) return div(x, add(set1(1), exp(sub(set1(0), x))));
  if (kind == RELU) return max(x, set1(0));
  if (kind == GELU_TANH) {
    const F inner = mul(set1(0.7978845608028654f), fma(mul(set1(0.044715f), mul(x, x)), x, x));
    return mul(mul(set1(0.5f), x), add(set1(1), tanh_of(inner)));
  }
  if (kind == GELU) {
    float v[16];
    store(v, x);
    for (int i = 0; i < 16; i++) v[i] = 0.5f * v[i] * (1.0f + std::erf(v[i] * 0.70710678118654752f));
    return load(v);
  }
  return x;
}

void activate(float* x, const float* gate_by, int n, int kind) {  // n is a multiple of 16
  for (int i = 0; i < n; i += 16) {
    const F a = activation(load(x + i), kind);
    store(x + i, gate_by ? mul(a, load(gate_by + i)) : a);
  }
}

// Pairs (i, i + half) turned by their angle. The tail is done lane by lane: the same two operations.
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

void softcap(float* x, int n, float cap) {
  for (int i = 0; i < n; i++) x[i] = std::tanh(x[i] / cap) * cap;
}

void add_to(float* x, const float* y, int n) {
  int i = 0;
  for (; i + 16 <= n; i += 16) store(x + i, add(load(x + i), load(y + i)));
  for (; i < n; i++) x[i] += y[i];
}

// Largest of a stretch of at most 512, then its place in the best stretch.
int64_t place_of_largest(const float* x, int64_t n) {
  constexpr int64_t STRETCH = 512;
  int64_t place, begin = 0;
  float best = -INFINITY;
  F odd[4] = {set1(0), set1(0), set1(0), set1(0)};  // stays 0 but for what is infinite or no number
  for (int64_t from = 0; from < n; from += STRETCH) {
    const int64_t end = n < from + STRETCH ? n : from + STRETCH;
    F most[4] = {set1(-INFINITY), set1(-INFINITY), set1(-INFINITY), set1(-INFINITY)};
    int64_t i = from;
    for (; i + 64 <= end; i += 64)
      TM_UNROLL for (int j = 0; j < 4; j++) {
        const F part = load(x + i + 16 * j);
        most[j] = max(most[j], part), odd[j] = fma(part, set1(0), odd[j]);
      }
    float here = largest(max(max(most[0], most[1]), max(most[2], most[3])));
    bool bad = false;
    for (; i < end; i++) here = x[i] > here ? x[i] : here, bad |= x[i] != x[i];
    if (here > best) best = here, begin = from;
    if (bad) odd[0] = set1(NAN);
  }
  if (sum(add(add(odd[0], odd[1]), add(odd[2], odd[3]))) != 0)
    for (int64_t i = 0; i < n; i++)
      if (x[i] != x[i]) return i;
  for (place = begin; place + 1 < n && x[place] != best; place++) {
  }
  return place;
}

void cache_row(const float* x, int n, int form, void* row, float* scale) {  // x is padded with zeros to 16
  if (form == AS_FLOAT32) {
    memcpy(row, x, sizeof(float) * (size_t)n);
    return;
  }
  F most = set1(0);
  if (form == AS_INT8) {
    for (int i = 0; i < n; i += 16) most = max(most, abs(load(x + i)));
    *scale = largest(most) / 127.0f;
  }
  const float inverse = form == AS_INT8 && *scale > 0 ? 127.0f / largest(most) : 0.0f;
  for (int i = 0; i < n; i += 16) {
    alignas(64) uint8_t part[32];
    const int size = form == AS_INT8 ? 1 : 2;
    if (form == AS_INT8)
      to_bytes((int8_t*)part, to_int(mul(load(x + i), set1(inverse))));
    else
      to_bfloat((uint16_t*)part, load(x + i));
    memcpy((uint8_t*)row + i * size, part, (size_t)((n - i < 16 ? n - i : 16) * size));
  }
}

void merge(float* best, float* total, float* values, float best2, float total2, const float* values2, int n) {
  if (total2 == 0) return;
  if (*total == 0) {
    *best = best2, *total = total2;
    memcpy(values, values2, sizeof(float) * (size_t)n);
    return;
  }
  const float most = *best > best2 ? *best : best2;
  float factors[2] = {*best - most, best2 - most};
  alignas(64) float lanes[16] = {factors[0], factors[1]};
  store(lanes, exp(load(lanes)));
  const F f1 = set1(lanes[0]), f2 = set1(lanes[1]);
  for (int i = 0; i < n; i += 16) store(values + i, fma(load(values2 + i), f2, mul(load(values + i), f1)));
  *total = total2 * lanes[1] + *total * lanes[0];
  *best = most;
}

}  // namespace
