// Unnormalised probabilities as integers: a draw gives each token a weight, 2**bits times the exponential of its scaled logit,
// rounded down. Sums of integers have no rounding, so they do not depend on the order of the tokens.
//
// The exponential is ours and made of products and sums that round one by one, so that every build computes the same bits. It is
// off by less than a unit in the last place (tests/program/native_kernels.cpp compares it with long double).
#pragma once
#include <cfloat>

#include "kernels/sample_scratch.h"
#include "vector/vector.h"

namespace {

// The scaling of numbers x: (x - largest) / temperature, rounded to float32 after either step. `offset`, the largest scaled number
// that is left, is subtracted from it in float64. The likeliest token weighs 2**bits.
struct Scaling {
  float largest, temperature;
  double offset;
  int64_t bits;
};

TM_INLINE float scaled(float x, const Scaling& how) { return (x - how.largest) / how.temperature; }

// 2**bits * e**below, rounded down. below: at most 0.
TM_INLINE int64_t weight(double below, int64_t bits) {
  constexpr double SHIFT = 0x1.8p52;  // numbers added to it are rounded to whole numbers, which stand in its last bits
  const double lowest = (double)(bits + 1) * -0x1.62e42fefa39efp-1;  // weighs half a unit
  const double x = below > lowest ? below : lowest, shifted = x * 0x1.71547652b82fep0 + SHIFT, n = shifted - SHIFT;
  const double high = x - n * 0x1.62e42fefa38p-1, low = n * 0x1.ef35793c7673p-45, r = high - low;  // n ln 2: `high` is exact
  // (e**r - 1 - r) / r**2 where |r| <= ln 2 / 2, to 2**-55; in pairs, so that products need not wait for each other.
  const double r2 = r * r, r4 = r2 * r2;
  const double p01 = 0x1.0000000000001p-1 + r * 0x1.5555555555556p-3, p23 = 0x1.5555555553d63p-5 + r * 0x1.11111111109b3p-7;
  const double p45 = 0x1.6c16c1788bd90p-10 + r * 0x1.a01a01a7c41d5p-13, p67 = 0x1.a019b90d2ae7ap-16 + r * 0x1.71de0dae63bb3p-19;
  const double p89 = 0x1.289185613a3d6p-22 + r * 0x1.af38a9b0ec855p-26;
  const double p = (p01 + r2 * p23) + r4 * ((p45 + r2 * p67) + r4 * p89);
  const double mantissa = 1 + (high + (r2 * p - low));
  uint64_t value, exponent;
  memcpy(&value, &mantissa, 8), memcpy(&exponent, &shifted, 8);
  value += (exponent + (uint64_t)bits) << 52;
#if defined(TM_AVX512)
  double product;
  memcpy(&product, &value, 8);
  return (int64_t)product;
#else  // no instruction converts vectors; the exponent is from -2 to 61
  const uint64_t fraction = ((value & 0xfffffffffffff) | 0x10000000000000) << 9;
  return (int64_t)(fraction >> (1023 + 61 - (value >> 52)));
#endif
}

// The bits of the likeliest token's weight, such that the weights of `size` tokens add up to less than 2**63.
TM_INLINE int64_t weight_bits(int64_t size) {
  int64_t bits = 62;
  for (; size; size /= 2) bits--;
  return bits;
}

TM_INLINE void weigh(const float* x, const Scaling& how, int64_t* weights) {
  for (int i = 0; i < CHUNK; i++) weights[i] = weight((double)scaled(x[i], how) - how.offset, how.bits);
}

TM_INLINE int64_t sum_of_weights(const float* x, const Scaling& how) {
  int64_t sum = 0;
  for (int i = 0; i < CHUNK; i++) sum += weight((double)scaled(x[i], how) - how.offset, how.bits);
  return sum;
}

// The smallest number whose scaled value is `wanted`, which is at most 0, or more. Numbers are tried in the order of the floats:
// as integers, they are in order once the lower bits of negative numbers are flipped.
float least_scaled_to(float wanted, const Scaling& how) {
  const auto number = [](int64_t place) {
    const int32_t bits = (int32_t)(place < 0 ? place ^ 0x7fffffff : place);
    float value;
    memcpy(&value, &bits, 4);
    return value;
  };
  int64_t low = -0x7f800001, high = 0x7f7fffff;  // -infinity and the largest number
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (scaled(number(middle), how) >= wanted)
      high = middle;
    else
      low = middle + 1;
  }
  return number(high);
}

}  // namespace
