// Vectors of 16 floats (F) or int32 (I), with the same functions for every instruction set: one register with AVX-512, two with
// AVX2, four with Advanced SIMD, an array elsewhere. avx512.h, avx2.h, neon.h and portable.h hold the differences; dots_vnni.h or
// dots_pairs.h has the integer dot products of the first two, sums_ints.h the sums of all but dots_pairs.h. All of them compute
// the same bits.
//
// Functions have the names of C or of the operation: load, store, set1 (a scalar in all lanes), fma(a, b, c) = a * b + c,
// where_less(a, b, yes, no) (a < b ? yes : no), half and bfloat (16 numbers of 16 bits as floats), to_half (floats of at most
// 65504 rounded to numbers that 16 bits can hold), store_half (rounds any floats so), scale2 (a * 2**n), to_int (rounds to the nearest,
// ties to even), to_bfloat (as to_int rounds; subnormal numbers become zero), to_codes (int8: the last byte).
//
// Dot products of weights. Bytes64 holds 16 rows x 4 bytes. dot4 adds the products with the same 4 int8 activations to 16 sums;
// weights are unsigned there (4-bit codes are stored as code + 8). dot4_byte does so for 8-bit weights, stored as code + 128:
// with SIGNED_BYTES it subtracts the 128, otherwise the caller corrects the sums. NibbleSums holds the sums of one group of
// 4-bit codes; `start` and `finish` begin and end such a sum, and one of the two adds the correction. start_factored
// and add_factored begin and end the sum of half a group of 6-bit codes and multiply it by the factor that its row has; `offset`
// is -8 times the sum of the half's activations. with_bits adds to nibbles the bits of `bits`, shifted to the left (to the right
// where LEFT < 0), that `mask` selects. dot2 multiplies 16 rows x 2 bfloat16.
//
// Everything is static, so that builds of kernels.cpp for different instruction sets cannot share a function by accident.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#define TM_INLINE static inline __attribute__((always_inline))
#if defined(__AVX512F__) || defined(__AVX2__) || defined(__ARM_FEATURE_DOTPROD)
#define TM_UNROLL _Pragma("GCC unroll 16")  // otherwise gcc keeps arrays of registers on the stack
#else
#define TM_UNROLL  // unrolling arrays doubles the time to compile
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define TM_AVX512 1
#include "vector/avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define TM_AVX2 1
#include "vector/avx2.h"
#elif defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#define TM_NEON 1
#include "vector/neon.h"
#else
#define TM_PORTABLE 1
#include "vector/portable.h"
#endif

#if (defined(TM_AVX512) && defined(__AVX512VNNI__)) || (defined(TM_AVX2) && defined(__AVXVNNI__))
#define TM_VNNI 1
#include "vector/dots_vnni.h"
#elif defined(TM_AVX512) || defined(TM_AVX2)
#define TM_PAIRS 1
#include "vector/dots_pairs.h"
#endif
#if !defined(TM_PAIRS)
#include "vector/sums_ints.h"
#endif

#if defined(TM_NEON) || defined(TM_PORTABLE)
TM_INLINE void to_bfloat(uint16_t* p, F a) {
  float lanes[16];
  store(lanes, a);
  for (int i = 0; i < 16; i++) {
    uint32_t bits;
    memcpy(&bits, lanes + i, 4);
    const bool nan = (bits & 0x7fffffff) > 0x7f800000, subnormal = !(bits & 0x7f800000);
    const uint32_t high = bits >> 16;
    p[i] = (uint16_t)(nan ? high | 64 : subnormal ? high & 0x8000 : (bits + 0x7fff + (high & 1)) >> 16);
  }
}
TM_INLINE void to_codes(int8_t* p, I a) {
  int32_t lanes[16];
  memcpy(lanes, &a, 64);
  for (int i = 0; i < 16; i++) p[i] = (int8_t)lanes[i];
}
#endif

TM_INLINE F from_codes(const int8_t* p) {
#if defined(TM_AVX512)
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)))};
#elif defined(TM_AVX2)
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p))),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8))))};
#elif defined(TM_NEON)
  return from_int(from_bytes(p));
#else
  F r;
  for (int i = 0; i < 16; i++) r.v[i] = p[i];
  return r;
#endif
}

// Sums of all lanes in one fixed order for every instruction set: halves, quarters, eighths, pairs.
#if defined(TM_PORTABLE)
TM_INLINE float reduce_sum(F a) {
  for (int width = 8; width; width /= 2)
    for (int i = 0; i < width; i++) a.v[i] += a.v[i + width];
  return a.v[0];
}
TM_INLINE float reduce_max(F a) {
  for (int i = 1; i < 16; i++) a.v[0] = a.v[i] > a.v[0] ? a.v[i] : a.v[0];
  return a.v[0];
}
TM_INLINE int32_t reduce_sum_ints(I a, I b) {
  int32_t total = 0;
  TM_EACH total += a.v[i] + b.v[i];
  return total;
}
#elif defined(TM_NEON)
TM_INLINE float reduce_sum(F a) {
  const float32x4_t four = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
TM_INLINE float reduce_max(F a) {
  float lanes[16], largest;
  store(lanes, a), largest = lanes[0];
  for (int i = 1; i < 16; i++) largest = lanes[i] > largest ? lanes[i] : largest;
  return largest;
}
TM_INLINE int32_t reduce_sum_ints(I a, I b) {
  const I both = iadd(a, b);
  return vaddvq_s32(vaddq_s32(vaddq_s32(both.v[0], both.v[1]), vaddq_s32(both.v[2], both.v[3])));
}
#else
#if defined(TM_AVX512)
TM_INLINE __m256 low8(F a) { return _mm512_castps512_ps256(a.v); }
TM_INLINE __m256 high8(F a) { return _mm512_extractf32x8_ps(a.v, 1); }
TM_INLINE __m256i sum8(I a, I b) {
  const __m512i all = _mm512_add_epi32(a.v, b.v);
  return _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
}
#else
TM_INLINE __m256 low8(F a) { return a.a; }
TM_INLINE __m256 high8(F a) { return a.b; }
TM_INLINE __m256i sum8(I a, I b) { return _mm256_add_epi32(_mm256_add_epi32(a.a, a.b), _mm256_add_epi32(b.a, b.b)); }
#endif
TM_INLINE float reduce_sum(F a) {
  const __m256 eight = _mm256_add_ps(low8(a), high8(a));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
TM_INLINE float reduce_max(F a) {
  const __m256 eight = _mm256_max_ps(low8(a), high8(a));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
TM_INLINE int32_t reduce_sum_ints(I a, I b) {
  const __m256i eight = sum8(a, b);
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}
#endif

// The largest absolute value of all lanes, or NaN if there is one. As integers, the bits of floats without their signs have the
// order of the floats, and NaN comes last.
#if defined(TM_AVX512)
TM_INLINE __m512i max_abs_bits(F a, F b) { return _mm512_max_epi32(_mm512_castps_si512(abs(a).v), _mm512_castps_si512(abs(b).v)); }
TM_INLINE float reduce_max_abs(F a, F b) {
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(_mm512_reduce_max_epi32(max_abs_bits(a, b)))));
}
#elif defined(TM_AVX2)
TM_INLINE __m256i max_abs_bits(F x) { return _mm256_max_epi32(_mm256_castps_si256(abs(x).a), _mm256_castps_si256(abs(x).b)); }
TM_INLINE float reduce_max_abs(F a, F b) {
  const __m256i eight = _mm256_max_epi32(max_abs_bits(a), max_abs_bits(b));
  const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1))));
}
#elif defined(TM_NEON)
TM_INLINE float reduce_max_abs(F a, F b) {
  uint32x4_t all = vdupq_n_u32(0);
  TM_QUARTERS {
    all = vmaxq_u32(all, vreinterpretq_u32_f32(vabsq_f32(a.v[i])));
    all = vmaxq_u32(all, vreinterpretq_u32_f32(vabsq_f32(b.v[i])));
  }
  const uint32_t bits = vmaxvq_u32(all);
  float largest;
  memcpy(&largest, &bits, 4);
  return largest;
}
#else
TM_INLINE float reduce_max_abs(F a, F b) {
  float max_size = 0;
  for (int i = 0; i < 32; i++) {
    const float size = std::fabs(i < 16 ? a.v[i] : b.v[i - 16]);
    if (size > max_size || size != size) max_size = size;
  }
  return max_size;
}
#endif

// e**x to about 2 units in the last place; 0 below -87 (coefficients: Cephes expf, Moshier 1989).
TM_INLINE F exp(F x) {
  x = min(max(x, set1(-87.3f)), set1(88.3f));
  const F n = round(mul(x, set1(1.44269504088896341f)));
  F r = fma(n, set1(-0.693359375f), x);
  r = fma(n, set1(2.12194440e-4f), r);
  F p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = add(fma(p, mul(r, r), r), set1(1.0f));
  return scale2(p, n);
}
