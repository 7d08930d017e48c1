// Vector functions that attention alone needs, for every instruction set. Included by attention/attend.h.
#pragma once
#include "vector/vector.h"

#if defined(TM_AVX512)
// Lanes outside of [first, last) become `other`.
TM_INLINE F mask_outside(F a, int first, int last, float other) {
  const uint32_t below = last >= 16 ? 0xffff : last <= 0 ? 0 : (1u << last) - 1;
  const uint32_t from = first <= 0 ? 0xffff : first >= 16 ? 0 : 0xffffu << first;
  return {_mm512_mask_mov_ps(_mm512_set1_ps(other), (__mmask16)(below & from), a.v)};
}

// Four words of a query, repeated in all four quarters of a vector. fma_quad (words are floats) and dot2_quad (pairs of
// bfloat16) multiply them with four words of each of four keys: 16 products, or sums of two products, added to `sums`.
typedef __m512i Quad;
TM_INLINE Quad broadcast_quad(const void* p) { return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)p)); }
TM_INLINE F fma_quad(F sums, Bytes64 w, Quad x) {
  return {_mm512_fmadd_ps(_mm512_castsi512_ps(w), _mm512_castsi512_ps(x), sums.v)};
}
TM_INLINE F dot2_quad(F sums, Bytes64 w, Quad x) { return {dot2_16(sums.v, w, x)}; }
// Vector g has four sums for each of the keys g, 4 + g, 8 + g and 12 + g, as interleave_keys arranges them. The result has the
// sum of each of the 16 keys, added as (0 + 2) + (1 + 3).
TM_INLINE F sum_quads(F a, F b, F c, F d) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a.v, b.v), _mm512_unpackhi_ps(a.v, b.v));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c.v, d.v), _mm512_unpackhi_ps(c.v, d.v));
  return {_mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))),
                        _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))))};
}

#elif defined(TM_AVX2)
TM_INLINE __m256 mask_outside8(__m256 a, int first, int last, float other) {
  const __m256i lane = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
  const __m256i out = _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(first), lane),
                                      _mm256_cmpgt_epi32(lane, _mm256_set1_epi32(last - 1)));
  return _mm256_blendv_ps(a, _mm256_set1_ps(other), _mm256_castsi256_ps(out));
}
TM_INLINE F mask_outside(F x, int first, int last, float other) {
  return {mask_outside8(x.a, first, last, other), mask_outside8(x.b, first - 8, last - 8, other)};
}

typedef __m256i Quad;
TM_INLINE Quad broadcast_quad(const void* p) { return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)p)); }
TM_INLINE F fma_quad(F sums, Bytes64 w, Quad x) {
  const __m256 four = _mm256_castsi256_ps(x);
  return {_mm256_fmadd_ps(_mm256_castsi256_ps(w.a), four, sums.a), _mm256_fmadd_ps(_mm256_castsi256_ps(w.b), four, sums.b)};
}
TM_INLINE F dot2_quad(F sums, Bytes64 w, Quad x) { return {dot2_8(sums.a, w.a, x), dot2_8(sums.b, w.b, x)}; }

TM_INLINE __m256 sum_quads8(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
  const __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
  return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(ab), _mm256_castps_pd(cd))),
                       _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(ab), _mm256_castps_pd(cd))));
}
TM_INLINE F sum_quads(F a, F b, F c, F d) { return {sum_quads8(a.a, b.a, c.a, d.a), sum_quads8(a.b, b.b, c.b, d.b)}; }

#elif defined(TM_NEON)
TM_INLINE F mask_outside(F a, int first, int last, float other) {
  const int32_t numbers[] = {0, 1, 2, 3};
  TM_QUARTERS {
    const int32x4_t lane = vaddq_s32(vld1q_s32(numbers), vdupq_n_s32(4 * i));
    const uint32x4_t in = vandq_u32(vcgeq_s32(lane, vdupq_n_s32(first)), vcltq_s32(lane, vdupq_n_s32(last)));
    a.v[i] = vbslq_f32(in, a.v[i], vdupq_n_f32(other));
  }
  return a;
}

typedef uint32x4_t Quad;
TM_INLINE Quad broadcast_quad(const void* p) { return vreinterpretq_u32_u8(vld1q_u8((const uint8_t*)p)); }
TM_INLINE F fma_quad(F sums, Bytes64 w, Quad x) {
  TM_QUARTERS sums.v[i] = vfmaq_f32(sums.v[i], vreinterpretq_f32_u8(w.v[i]), vreinterpretq_f32_u32(x));
  return sums;
}
TM_INLINE F dot2_quad(F sums, Bytes64 w, Quad x) {
  TM_QUARTERS sums.v[i] = dot2_4(sums.v[i], vreinterpretq_u32_u8(w.v[i]), x);
  return sums;
}

TM_INLINE F sum_quads(F a, F b, F c, F d) {
  TM_QUARTERS {  // (0 + 2) and (1 + 3) of two keys in one register
    const float32x4_t ab = vaddq_f32(vzip1q_f32(a.v[i], b.v[i]), vzip2q_f32(a.v[i], b.v[i]));
    const float32x4_t cd = vaddq_f32(vzip1q_f32(c.v[i], d.v[i]), vzip2q_f32(c.v[i], d.v[i]));
    const float64x2_t low = vreinterpretq_f64_f32(ab), high = vreinterpretq_f64_f32(cd);
    a.v[i] = vaddq_f32(vreinterpretq_f32_f64(vzip1q_f64(low, high)), vreinterpretq_f32_f64(vzip2q_f64(low, high)));
  }
  return a;
}

#else
TM_INLINE F mask_outside(F a, int first, int last, float other) {
  TM_EACH a.v[i] = i >= first && i < last ? a.v[i] : other;
  return a;
}

typedef const void* Quad;
TM_INLINE Quad broadcast_quad(const void* p) { return p; }
TM_INLINE F fma_quad(F sums, Bytes64 w, Quad x) {
  TM_EACH sums.v[i] = fma1(((const float*)w.v)[i], ((const float*)x)[i % 4], sums.v[i]);
  return sums;
}
TM_INLINE F dot2_quad(F sums, Bytes64 w, Quad x) {
  const uint16_t *two = (const uint16_t*)w.v, *by = (const uint16_t*)x;
  TM_EACH sums.v[i] = fma1(bfloat1(two[2 * i + 1]), bfloat1(by[2 * (i % 4) + 1]), sums.v[i]);
  TM_EACH sums.v[i] = fma1(bfloat1(two[2 * i]), bfloat1(by[2 * (i % 4)]), sums.v[i]);
  return sums;
}

TM_INLINE F sum_quads(F a, F b, F c, F d) {
  const F* all[4] = {&a, &b, &c, &d};
  F r;
  TM_EACH {
    const float* four = all[i % 4]->v + i / 4 * 4;
    r.v[i] = (four[0] + four[2]) + (four[1] + four[3]);
  }
  return r;
}
#endif

// 16 entries of two rows, with the two entries of a column side by side. dot_pair multiplies the rows by one bfloat16 weight
// each.
#if defined(__AVX512BF16__)
typedef __m512i RowPair;
// Interleaves the lower and the upper half: word 0 of both, word 1 of both, and so on.
TM_INLINE __m512i interleaved(__m512i halves) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,  //
                                         23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, halves);
}
TM_INLINE RowPair load_full_pair(const uint16_t* a, const uint16_t* b) {
  const __m512i low = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i*)a));
  return interleaved(_mm512_inserti64x4(low, _mm256_loadu_si256((const __m256i*)b), 1));
}
TM_INLINE F dot_pair(F sums, RowPair rows, const uint16_t* weights) {
  int32_t pair;
  memcpy(&pair, weights, 4);
  return {dot2_16(sums.v, rows, _mm512_set1_epi32(pair))};
}
#else
struct RowPair { F a, b; };
TM_INLINE RowPair load_full_pair(const uint16_t* a, const uint16_t* b) { return {bfloat(a), bfloat(b)}; }
TM_INLINE F dot_pair(F sums, RowPair rows, const uint16_t* weights) {
  uint32_t bits[2] = {(uint32_t)weights[0] << 16, (uint32_t)weights[1] << 16};
  float two[2];
  memcpy(two, bits, 8);
  return fma(set1(two[0]), rows.a, fma(set1(two[1]), rows.b, sums));
}
#endif

// The first `count` of 16 entries, all of them where FULL; the others are zero.
template <bool FULL>
TM_INLINE RowPair load_pair(const uint16_t* a, const uint16_t* b, int count) {
  if (FULL) return load_full_pair(a, b);
  alignas(64) uint16_t copies[2][16] = {};
  memcpy(copies[0], a, 2 * (size_t)count), memcpy(copies[1], b, 2 * (size_t)count);
  return load_full_pair(copies[0], copies[1]);
}
