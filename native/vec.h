// Sixteen lanes of float or int32, the same words on every processor: one register with AVX-512, two with AVX2, an array
// elsewhere. Everything here is static, so that the three builds of kernels.cpp cannot share a function by accident.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#define TM static inline __attribute__((always_inline))
#if defined(__AVX512F__) || defined(__AVX2__)
#define TM_UNROLL _Pragma("GCC unroll 16")  // else gcc keeps arrays of registers on the stack
#else
#define TM_UNROLL  // arrays are arrays; unrolled they take twice the time to compile
#endif

#if defined(__AVX512F__) && defined(__AVX512VNNI__) && defined(__AVX512BF16__)
#define TM_AVX512 1
struct F { __m512 v; };
struct I { __m512i v; };

TM F load(const float* p) { return {_mm512_loadu_ps(p)}; }
TM void store(float* p, F a) { _mm512_storeu_ps(p, a.v); }
TM F set1(float x) { return {_mm512_set1_ps(x)}; }
TM F add(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
TM F sub(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
TM F mul(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
TM F div(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
TM F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
TM F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
TM F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
TM F abs(F a) { return {_mm512_abs_ps(a.v)}; }
TM F round(F a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
TM F from_int(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
TM I to_int(F a) { return {_mm512_cvtps_epi32(a.v)}; }
TM I iset1(int x) { return {_mm512_set1_epi32(x)}; }
TM I times16(I a) { return {_mm512_slli_epi32(a.v, 4)}; }
TM F half(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
TM F bfloat(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
TM F scale2(F a, F n) { return {_mm512_scalef_ps(a.v, n.v)}; }  // a * 2**n

// What was written before is in memory by now. gcc does not know that a tile of the matrix unit is read from there, and takes lanes
// that are stored and loaded again one after the other out of their register, which is slower.
TM void settle() { asm volatile("" ::: "memory"); }

// 16 rows x 4 bytes of weights, times the same 4 signed bytes of activations, added to 16 sums. Those of one group of nibbles grow
// in a form of their own; what they begin with goes in at the start, or at the end where 16 bits have no room for it.
// SIGNED_BYTES: bytes of weights are taken for what they mean, not for 128 more.
typedef __m512i Line;
typedef I Grown;
constexpr bool SIGNED_BYTES = false;
TM void start(I& sums, I begin) { sums = begin; }
TM I finish(I sums, I) { return sums; }
TM Line load_line(const uint8_t* p) { return _mm512_loadu_si512(p); }
TM Line low_nibbles(Line a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
TM Line high_nibbles(Line a) { return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15)); }
TM I dot4(I sums, Line w, const int8_t* x) {
  int32_t quad;
  memcpy(&quad, x, 4);
  return {_mm512_dpbusd_epi32(sums.v, w, _mm512_set1_epi32(quad))};
}
TM I dot4_byte(I sums, Line w, const int8_t* x) { return dot4(sums, w, x); }
// 16 rows x 2 bfloat16 of weights, times the same 2 of activations.
TM F dot2(F sums, const uint16_t* w, const uint16_t* x) {
  int32_t pair;
  memcpy(&pair, x, 4);
  return {_mm512_dpbf16_ps(sums.v, (__m512bh)_mm512_loadu_si512(w), (__m512bh)_mm512_set1_epi32(pair))};
}
TM void to_bfloat(uint16_t* p, F a) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(a.v)); }
TM void to_bytes(int8_t* p, I a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(a.v)); }

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define TM_AVX2 1
struct F { __m256 a, b; };
struct I { __m256i a, b; };

TM F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
TM void store(float* p, F x) { _mm256_storeu_ps(p, x.a), _mm256_storeu_ps(p + 8, x.b); }
TM F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
TM F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
TM F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
TM F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
TM F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
TM F fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
TM F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
TM F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
TM F abs(F x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
TM F round(F x) {
  return {_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
TM F from_int(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
TM I to_int(F x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
TM I iset1(int x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
TM I times16(I x) { return {_mm256_slli_epi32(x.a, 4), _mm256_slli_epi32(x.b, 4)}; }
TM F half(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
TM __m256 bfloat8(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
TM F bfloat(const uint16_t* p) { return {bfloat8(p), bfloat8(p + 8)}; }
TM __m256 scale8(__m256 a, __m256 n) {  // n is a whole number from -126 to 127
  return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23)));
}
TM F scale2(F a, F n) { return {scale8(a.a, n.a), scale8(a.b, n.b)}; }

struct Line { __m256i a, b; };
TM Line load_line(const uint8_t* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 32))};
}
TM Line low_nibbles(Line x) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask)};
}
TM Line high_nibbles(Line x) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(_mm256_srli_epi16(x.a, 4), mask), _mm256_and_si256(_mm256_srli_epi16(x.b, 4), mask)};
}
// Pairs of inputs in 16 bits: the group's sixteen times up to 15 times up to 127 stay within them.
struct Grown { __m256i a, b; };
constexpr bool SIGNED_BYTES = true;
TM void start(Grown& sums, I) { sums.a = sums.b = _mm256_setzero_si256(); }
TM I finish(Grown sums, I begin) {
  const __m256i ones = _mm256_set1_epi16(1);
  return {_mm256_add_epi32(begin.a, _mm256_madd_epi16(sums.a, ones)), _mm256_add_epi32(begin.b, _mm256_madd_epi16(sums.b, ones))};
}
TM void start(I& sums, I begin) { sums = begin; }
TM I finish(I sums, I) { return sums; }
TM Grown dot4(Grown sums, Line w, const int8_t* x) {
  int32_t quad;
  memcpy(&quad, x, 4);
  const __m256i all = _mm256_set1_epi32(quad);
  return {_mm256_add_epi16(sums.a, _mm256_maddubs_epi16(w.a, all)), _mm256_add_epi16(sums.b, _mm256_maddubs_epi16(w.b, all))};
}
// The sign goes from the weights to the activations, which are never -128: up to 128 times up to 127, twice, is within 16 bits.
TM __m256i dot4_byte8(__m256i sums, __m256i w, __m256i x) {
  const __m256i codes = _mm256_xor_si256(w, _mm256_set1_epi8((char)128));
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes));
  return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
TM I dot4_byte(I sums, Line w, const int8_t* x) {
  int32_t quad;
  memcpy(&quad, x, 4);
  const __m256i all = _mm256_set1_epi32(quad);
  return {dot4_byte8(sums.a, w.a, all), dot4_byte8(sums.b, w.b, all)};
}
TM __m256 dot2_8(__m256 sums, __m256i w, __m256i x) {
  const __m256i high = _mm256_set1_epi32((int)0xffff0000);
  const __m256 w1 = _mm256_castsi256_ps(_mm256_and_si256(w, high)), w0 = _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
  const __m256 x1 = _mm256_castsi256_ps(_mm256_and_si256(x, high)), x0 = _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
  return _mm256_fmadd_ps(w0, x0, _mm256_fmadd_ps(w1, x1, sums));
}
TM F dot2(F sums, const uint16_t* w, const uint16_t* x) {
  int32_t pair;
  memcpy(&pair, x, 4);
  const __m256i all = _mm256_set1_epi32(pair);
  return {dot2_8(sums.a, _mm256_loadu_si256((const __m256i*)w), all),
          dot2_8(sums.b, _mm256_loadu_si256((const __m256i*)(w + 16)), all)};
}

#else
#define TM_PORTABLE 1
struct F { float v[16]; };
struct I { int32_t v[16]; };
#define TM_EACH for (int i = 0; i < 16; i++)
TM F load(const float* p) { F r; memcpy(r.v, p, 64); return r; }
TM void store(float* p, F a) { memcpy(p, a.v, 64); }
TM F set1(float x) { F r; TM_EACH r.v[i] = x; return r; }
TM F add(F a, F b) { TM_EACH a.v[i] += b.v[i]; return a; }
TM F sub(F a, F b) { TM_EACH a.v[i] -= b.v[i]; return a; }
TM F mul(F a, F b) { TM_EACH a.v[i] *= b.v[i]; return a; }
TM F div(F a, F b) { TM_EACH a.v[i] /= b.v[i]; return a; }
// One rounding where the processor does that, as the other builds do; then all give the same bits.
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
TM float fma1(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
TM float fma1(float a, float b, float c) { return a * b + c; }
#endif
TM F fma(F a, F b, F c) { TM_EACH c.v[i] = fma1(a.v[i], b.v[i], c.v[i]); return c; }
TM F max(F a, F b) { TM_EACH a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
TM F min(F a, F b) { TM_EACH a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return a; }
TM F abs(F a) { TM_EACH a.v[i] = std::fabs(a.v[i]); return a; }
TM F round(F a) { TM_EACH a.v[i] = std::nearbyintf(a.v[i]); return a; }
TM F from_int(I a) { F r; TM_EACH r.v[i] = (float)a.v[i]; return r; }
TM I to_int(F a) { I r; TM_EACH r.v[i] = (int32_t)std::nearbyintf(a.v[i]); return r; }
TM I iset1(int x) { I r; TM_EACH r.v[i] = x; return r; }
TM I times16(I a) { I r; TM_EACH r.v[i] = 16 * a.v[i]; return r; }
TM float half1(uint16_t h) {
  const uint32_t exponent = (h >> 10) & 31, mantissa = h & 1023;
  const float value = exponent == 0    ? (float)mantissa * 5.9604644775390625e-8f
                      : exponent == 31 ? (mantissa ? NAN : INFINITY)
                                       : std::ldexp((float)(mantissa | 1024), (int)exponent - 25);
  return h & 0x8000 ? -value : value;
}
TM float bfloat1(uint16_t h) {
  const uint32_t bits = (uint32_t)h << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
TM F half(const uint16_t* p) { F r; TM_EACH r.v[i] = half1(p[i]); return r; }
TM F bfloat(const uint16_t* p) { F r; TM_EACH r.v[i] = bfloat1(p[i]); return r; }
TM F scale2(F a, F n) { TM_EACH a.v[i] = std::ldexp(a.v[i], (int)n.v[i]); return a; }

struct Line { alignas(64) uint8_t v[64]; };
typedef I Grown;
constexpr bool SIGNED_BYTES = false;
TM void start(I& sums, I begin) { sums = begin; }
TM I finish(I sums, I) { return sums; }
TM Line load_line(const uint8_t* p) { Line r; memcpy(r.v, p, 64); return r; }
TM Line low_nibbles(Line a) { for (int i = 0; i < 64; i++) a.v[i] &= 15; return a; }
TM Line high_nibbles(Line a) { for (int i = 0; i < 64; i++) a.v[i] >>= 4; return a; }
TM I dot4(I sums, Line w, const int8_t* x) {
  TM_EACH for (int j = 0; j < 4; j++) sums.v[i] += (int)w.v[4 * i + j] * x[j];
  return sums;
}
TM I dot4_byte(I sums, Line w, const int8_t* x) { return dot4(sums, w, x); }
TM F dot2(F sums, const uint16_t* w, const uint16_t* x) {
  TM_EACH sums.v[i] = fma1(bfloat1(w[2 * i + 1]), bfloat1(x[1]), sums.v[i]);
  TM_EACH sums.v[i] = fma1(bfloat1(w[2 * i]), bfloat1(x[0]), sums.v[i]);
  return sums;
}
#endif

#if !defined(TM_AVX512)
TM void to_bfloat(uint16_t* p, F a) {  // to nearest, ties to even
  float lanes[16];
  store(lanes, a);
  for (int i = 0; i < 16; i++) {
    uint32_t bits;
    memcpy(&bits, lanes + i, 4);
    const bool nan = (bits & 0x7fffffff) > 0x7f800000;
    p[i] = (uint16_t)(nan ? (bits >> 16) | 64 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
}
TM void to_bytes(int8_t* p, I a) {
  int32_t lanes[16];
  memcpy(lanes, &a, 64);
  for (int i = 0; i < 16; i++) p[i] = (int8_t)lanes[i];
}
#endif

TM F from_bytes(const int8_t* p) {
#if defined(TM_AVX512)
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)))};
#elif defined(TM_AVX2)
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p))),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8))))};
#else
  F r;
  for (int i = 0; i < 16; i++) r.v[i] = p[i];
  return r;
#endif
}

// Sums in one fixed order on every processor: halves, quarters, eighths, pairs.
#if defined(TM_PORTABLE)
TM float sum(F a) {
  for (int width = 8; width; width /= 2)
    for (int i = 0; i < width; i++) a.v[i] += a.v[i + width];
  return a.v[0];
}
TM float largest(F a) {
  for (int i = 1; i < 16; i++) a.v[0] = a.v[i] > a.v[0] ? a.v[i] : a.v[0];
  return a.v[0];
}
TM int32_t sum_ints(I a, I b) {
  int32_t total = 0;
  TM_EACH total += a.v[i] + b.v[i];
  return total;
}
#else
#if defined(TM_AVX512)
TM __m256 low8(F a) { return _mm512_castps512_ps256(a.v); }
TM __m256 high8(F a) { return _mm512_extractf32x8_ps(a.v, 1); }
TM __m256i sum8(I a, I b) {
  const __m512i all = _mm512_add_epi32(a.v, b.v);
  return _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
}
#else
TM __m256 low8(F a) { return a.a; }
TM __m256 high8(F a) { return a.b; }
TM __m256i sum8(I a, I b) { return _mm256_add_epi32(_mm256_add_epi32(a.a, a.b), _mm256_add_epi32(b.a, b.b)); }
#endif
TM float sum(F a) {
  const __m256 eight = _mm256_add_ps(low8(a), high8(a));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
TM float largest(F a) {
  const __m256 eight = _mm256_max_ps(low8(a), high8(a));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
TM int32_t sum_ints(I a, I b) {
  const __m256i eight = sum8(a, b);
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}
#endif

// The largest without its sign, or what is no number where one is none: bits of floats without signs are in the order of the
// floats, and behind them comes what is no number.
#if defined(TM_AVX512)
TM __m512i larger_size(F a, F b) { return _mm512_max_epi32(_mm512_castps_si512(abs(a).v), _mm512_castps_si512(abs(b).v)); }
TM float largest_size(F a, F b) { return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(_mm512_reduce_max_epi32(larger_size(a, b))))); }
#elif defined(TM_AVX2)
TM __m256i larger_size(F x) { return _mm256_max_epi32(_mm256_castps_si256(abs(x).a), _mm256_castps_si256(abs(x).b)); }
TM float largest_size(F a, F b) {
  const __m256i eight = _mm256_max_epi32(larger_size(a), larger_size(b));
  const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1))));
}
#else
TM float largest_size(F a, F b) {
  float most = 0;
  for (int i = 0; i < 32; i++) {
    const float size = std::fabs(i < 16 ? a.v[i] : b.v[i - 16]);
    if (size > most || size != size) most = size;
  }
  return most;
}
#endif

// e**x to about 2 units in the last place; 0 below -87 (coefficients: Cephes expf, Moshier 1989).
TM F exp(F x) {
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
