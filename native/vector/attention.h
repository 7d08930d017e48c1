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

// Four words of a query, repeated in all quarters of a vector. fma_quad (words are floats) and dot2_quad (pairs of bfloat16)
// multiply them with four words of each of four keys, and add the products to `sums`. A vector of sums has PARTS parts, so
// that the sums of four words and SCORE_ROWS queries fit into the registers.
typedef F Part;
typedef __m512i Quad;
typedef __m512i CodePairs;
TM_INLINE __m256i side_by_side(__m128i a, __m128i b) { return _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1); }
TM_INLINE Bytes64 four_words(const uint8_t* a, const uint8_t* b, const uint8_t* c, const uint8_t* d) {
  const auto at = [](const uint8_t* p) { return _mm_loadu_si128((const __m128i*)p); };
  return _mm512_inserti64x4(_mm512_castsi256_si512(side_by_side(at(a), at(b))), side_by_side(at(c), at(d)), 1);
}
TM_INLINE Bytes64 odd_entries(Bytes64 w) { return _mm512_and_si512(w, _mm512_set1_epi32((int)0xffff0000)); }
TM_INLINE Bytes64 even_entries(Bytes64 w) { return _mm512_slli_epi32(w, 16); }
TM_INLINE CodePairs four_codes(const uint8_t* a, const uint8_t* b, const uint8_t* c, const uint8_t* d) {
  const auto at = [](const uint8_t* p) { return _mm_loadl_epi64((const __m128i*)p); };
  return _mm512_cvtepi16_epi32(side_by_side(_mm_unpacklo_epi64(at(a), at(b)), _mm_unpacklo_epi64(at(c), at(d))));
}
TM_INLINE F odd_codes(CodePairs w) { return {_mm512_cvtepi32_ps(_mm512_srai_epi32(w, 8))}; }
TM_INLINE F even_codes(CodePairs w) { return {_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(w, 24), 24))}; }
constexpr int PARTS = 1, SCORE_ROWS = 4, VALUE_VECTORS = 4;
TM_INLINE Part zero_part() { return set1(0); }
TM_INLINE Quad broadcast_quad(const void* p) { return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)p)); }
TM_INLINE Part fma_quad(Part sums, const uint32_t* w, Quad x) {
  return {_mm512_fmadd_ps(_mm512_loadu_ps((const float*)w), _mm512_castsi512_ps(x), sums.v)};
}
// Vector g has four sums for each of the keys g, 4 + g, 8 + g and 12 + g, as interleave_keys arranges them. Stores the scaled sum
// of each of the 16 keys, added as (0 + 2) + (1 + 3).
TM_INLINE void store_scores(float* out, Part a, Part b, Part c, Part d, float scale) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a.v, b.v), _mm512_unpackhi_ps(a.v, b.v));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c.v, d.v), _mm512_unpackhi_ps(c.v, d.v));
  const __m512 sums = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))),
                                    _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))));
  _mm512_storeu_ps(out, _mm512_mul_ps(sums, _mm512_set1_ps(scale)));
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

struct Part { __m256 v; };
typedef __m256 Quad;
typedef I CodePairs;
TM_INLINE __m256i side_by_side(__m128i a, __m128i b) { return _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1); }
TM_INLINE Bytes64 four_words(const uint8_t* a, const uint8_t* b, const uint8_t* c, const uint8_t* d) {
  const auto at = [](const uint8_t* p) { return _mm_loadu_si128((const __m128i*)p); };
  return {side_by_side(at(a), at(b)), side_by_side(at(c), at(d))};
}
TM_INLINE Bytes64 odd_entries(Bytes64 w) {
  const __m256i high = _mm256_set1_epi32((int)0xffff0000);
  return {_mm256_and_si256(w.a, high), _mm256_and_si256(w.b, high)};
}
TM_INLINE Bytes64 even_entries(Bytes64 w) { return {_mm256_slli_epi32(w.a, 16), _mm256_slli_epi32(w.b, 16)}; }
TM_INLINE CodePairs four_codes(const uint8_t* a, const uint8_t* b, const uint8_t* c, const uint8_t* d) {
  const auto at = [](const uint8_t* p) { return _mm_loadl_epi64((const __m128i*)p); };
  return {_mm256_cvtepi16_epi32(_mm_unpacklo_epi64(at(a), at(b))), _mm256_cvtepi16_epi32(_mm_unpacklo_epi64(at(c), at(d)))};
}
TM_INLINE F odd_codes(CodePairs w) { return from_int({_mm256_srai_epi32(w.a, 8), _mm256_srai_epi32(w.b, 8)}); }
TM_INLINE F even_codes(CodePairs w) {
  return from_int({_mm256_srai_epi32(_mm256_slli_epi32(w.a, 24), 24), _mm256_srai_epi32(_mm256_slli_epi32(w.b, 24), 24)});
}
constexpr int PARTS = 2, SCORE_ROWS = 2, VALUE_VECTORS = 1;
TM_INLINE Part zero_part() { return {_mm256_setzero_ps()}; }
TM_INLINE Quad broadcast_quad(const void* p) { return _mm256_broadcast_ps((const __m128*)p); }
TM_INLINE Part fma_quad(Part sums, const uint32_t* w, Quad x) { return {_mm256_fmadd_ps(_mm256_loadu_ps((const float*)w), x, sums.v)}; }
TM_INLINE void store_scores(float* out, Part a, Part b, Part c, Part d, float scale) {
  const __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a.v, b.v), _mm256_unpackhi_ps(a.v, b.v));
  const __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c.v, d.v), _mm256_unpackhi_ps(c.v, d.v));
  const __m256 sums = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(ab), _mm256_castps_pd(cd))),
                                    _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(ab), _mm256_castps_pd(cd))));
  _mm256_storeu_ps(out, _mm256_mul_ps(sums, _mm256_set1_ps(scale)));
}

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

struct Part { float32x4_t v; };
typedef float32x4_t Quad;
constexpr int PARTS = 4, SCORE_ROWS = 4, VALUE_VECTORS = 1;
TM_INLINE Part zero_part() { return {vdupq_n_f32(0)}; }
TM_INLINE Quad broadcast_quad(const void* p) { return vreinterpretq_f32_u8(vld1q_u8((const uint8_t*)p)); }
TM_INLINE Part fma_quad(Part sums, const uint32_t* w, Quad x) { return {vfmaq_f32(sums.v, vreinterpretq_f32_u32(vld1q_u32(w)), x)}; }
TM_INLINE void store_scores(float* out, Part a, Part b, Part c, Part d, float scale) {  // (0 + 2) and (1 + 3) of two keys in one register
  const float32x4_t ab = vaddq_f32(vzip1q_f32(a.v, b.v), vzip2q_f32(a.v, b.v));
  const float32x4_t cd = vaddq_f32(vzip1q_f32(c.v, d.v), vzip2q_f32(c.v, d.v));
  const float64x2_t low = vreinterpretq_f64_f32(ab), high = vreinterpretq_f64_f32(cd);
  const float32x4_t sums = vaddq_f32(vreinterpretq_f32_f64(vzip1q_f64(low, high)), vreinterpretq_f32_f64(vzip2q_f64(low, high)));
  vst1q_f32(out, vmulq_n_f32(sums, scale));
}

#else
TM_INLINE F mask_outside(F a, int first, int last, float other) {
  TM_EACH a.v[i] = i >= first && i < last ? a.v[i] : other;
  return a;
}

typedef F Part;
typedef const float* Quad;
constexpr int PARTS = 1, SCORE_ROWS = 4, VALUE_VECTORS = 4;
TM_INLINE Part zero_part() { return set1(0); }
TM_INLINE Quad broadcast_quad(const void* p) { return (const float*)p; }
TM_INLINE Part fma_quad(Part sums, const uint32_t* w, Quad x) {
  TM_EACH sums.v[i] = fma1(((const float*)w)[i], x[i % 4], sums.v[i]);
  return sums;
}
TM_INLINE void store_scores(float* out, Part a, Part b, Part c, Part d, float scale) {
  const F* all[4] = {&a, &b, &c, &d};
  TM_EACH {
    const float* four = all[i % 4]->v + i / 4 * 4;
    out[i] = ((four[0] + four[2]) + (four[1] + four[3])) * scale;
  }
}
#endif

#if defined(TM_NEON) || defined(TM_PORTABLE)
struct CodePairs { int8_t v[32]; };
TM_INLINE Bytes64 four_words(const uint8_t* a, const uint8_t* b, const uint8_t* c, const uint8_t* d) {
  uint8_t all[64];
  memcpy(all, a, 16), memcpy(all + 16, b, 16), memcpy(all + 32, c, 16), memcpy(all + 48, d, 16);
  return load_bytes64(all);
}
TM_INLINE CodePairs four_codes(const uint8_t* a, const uint8_t* b, const uint8_t* c, const uint8_t* d) {
  CodePairs all;
  memcpy(all.v, a, 8), memcpy(all.v + 8, b, 8), memcpy(all.v + 16, c, 8), memcpy(all.v + 24, d, 8);
  return all;
}
TM_INLINE F every_other(const int8_t* codes) {
  float lanes[16];
  for (int i = 0; i < 16; i++) lanes[i] = codes[2 * i];
  return load(lanes);
}
TM_INLINE F odd_codes(CodePairs w) { return every_other(w.v + 1); }
TM_INLINE F even_codes(CodePairs w) { return every_other(w.v); }
TM_INLINE Bytes64 each_word(Bytes64 w, uint32_t mask, int left) {
  uint32_t words[16];
  store_bytes64((uint8_t*)words, w);
  for (int i = 0; i < 16; i++) words[i] = (words[i] & mask) << left;
  return load_bytes64((const uint8_t*)words);
}
TM_INLINE Bytes64 odd_entries(Bytes64 w) { return each_word(w, 0xffff0000, 0); }
TM_INLINE Bytes64 even_entries(Bytes64 w) { return each_word(w, 0xffff, 16); }
#endif

// 16 entries of two rows, with the two entries of a column side by side. dot_pair multiplies the rows by one weight each, which is a
// bfloat16. store_pair_weights rounds weights to it.
#if defined(__AVX512BF16__)
constexpr bool MULTIPLIES_PAIRS = true;
TM_INLINE __m512i bfloats_of_codes(const int8_t* p) {  // 32 of them, in their order
  return (__m512i)_mm512_cvtne2ps_pbh(from_int(from_bytes(p + 16)).v, from_int(from_bytes(p)).v);
}
TM_INLINE Part dot2_quad(Part sums, const uint32_t* w, Quad x) { return {dot2_16(sums.v, _mm512_loadu_si512(w), x)}; }
typedef uint16_t PairWeight;
typedef __m512i RowPair;
TM_INLINE F store_pair_weights(PairWeight* to, F weights) {
  to_bfloat(to, weights);
  return bfloat(to);
}
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
TM_INLINE F dot_pair(F sums, RowPair rows, const PairWeight* weights) {
  int32_t pair;
  memcpy(&pair, weights, 4);
  return {dot2_16(sums.v, rows, _mm512_set1_epi32(pair))};
}
#else
constexpr bool MULTIPLIES_PAIRS = false;
typedef float PairWeight;
struct RowPair { F a, b; };
TM_INLINE F store_pair_weights(PairWeight* to, F weights) {
  uint16_t bfloats[16];
  to_bfloat(bfloats, weights);
  const F rounded = bfloat(bfloats);
  store(to, rounded);
  return rounded;
}
TM_INLINE RowPair load_full_pair(const uint16_t* a, const uint16_t* b) { return {bfloat(a), bfloat(b)}; }
TM_INLINE F dot_pair(F sums, RowPair rows, const PairWeight* weights) {
  return fma(set1(weights[0]), rows.a, fma(set1(weights[1]), rows.b, sums));
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
