// Vectors with AVX-512 (F, BW, VL, DQ, VNNI and BF16): one register. Included by vector.h, which says what each function does.
#pragma once
struct F { __m512 v; };
struct I { __m512i v; };

TM_INLINE F load(const float* p) { return {_mm512_loadu_ps(p)}; }
TM_INLINE void store(float* p, F a) { _mm512_storeu_ps(p, a.v); }
TM_INLINE F set1(float x) { return {_mm512_set1_ps(x)}; }
TM_INLINE F add(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
TM_INLINE F sub(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
TM_INLINE F mul(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
TM_INLINE F div(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
TM_INLINE F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
TM_INLINE F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
TM_INLINE F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
TM_INLINE F abs(F a) { return {_mm512_abs_ps(a.v)}; }
TM_INLINE F round(F a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
TM_INLINE F from_int(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
TM_INLINE I to_int(F a) { return {_mm512_cvtps_epi32(a.v)}; }
TM_INLINE I iset1(int x) { return {_mm512_set1_epi32(x)}; }
TM_INLINE I times16(I a) { return {_mm512_slli_epi32(a.v, 4)}; }
TM_INLINE I iadd(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }
TM_INLINE I imul(I a, I b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
TM_INLINE I from_bytes(const int8_t* p) { return {_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p))}; }
TM_INLINE F where_less(F a, F b, F yes, F no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
TM_INLINE F to_half(F a) { return {_mm512_cvtph_ps(_mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT))}; }
TM_INLINE F half(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
TM_INLINE void store_half(uint16_t* p, F a) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT)); }
TM_INLINE F bfloat(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
TM_INLINE F scale2(F a, F n) { return {_mm512_scalef_ps(a.v, n.v)}; }  // a * 2**n

// Makes gcc write to memory what it still holds in registers. gcc does not know that a tile load of the matrix unit reads that
// memory. It also replaces a store that is followed by scalar loads by shuffles, which are slower.
TM_INLINE void compiler_barrier() { asm volatile("" ::: "memory"); }

// See vector.h.
typedef __m512i Bytes64;
typedef I NibbleSums;
constexpr bool SIGNED_BYTES = false;
TM_INLINE void start(I& sums, I begin) { sums = begin; }
TM_INLINE I finish(I sums, I) { return sums; }
TM_INLINE Bytes64 load_bytes64(const uint8_t* p) { return _mm512_loadu_si512(p); }
TM_INLINE Bytes64 low_nibbles(Bytes64 a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
TM_INLINE Bytes64 high_nibbles(Bytes64 a) { return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15)); }
template <int LEFT> TM_INLINE Bytes64 with_bits(Bytes64 nibbles, Bytes64 bits, int mask) {
  const __m512i moved = LEFT < 0 ? _mm512_srli_epi16(bits, LEFT < 0 ? -LEFT : 0) : _mm512_slli_epi16(bits, LEFT < 0 ? 0 : LEFT);
  return _mm512_or_si512(nibbles, _mm512_and_si512(moved, _mm512_set1_epi8((char)mask)));
}
TM_INLINE I dot4(I sums, Bytes64 w, const int8_t* x) {
  int32_t quad;
  memcpy(&quad, x, 4);
  return {_mm512_dpbusd_epi32(sums.v, w, _mm512_set1_epi32(quad))};
}
TM_INLINE I dot4_byte(I sums, Bytes64 w, const int8_t* x) { return dot4(sums, w, x); }
// Both bfloat16 of a lane are multiplied and added by one instruction.
TM_INLINE F dot2(F sums, const uint16_t* w, const uint16_t* x) {
  int32_t pair;
  memcpy(&pair, x, 4);
  return {_mm512_dpbf16_ps(sums.v, (__m512bh)_mm512_loadu_si512(w), (__m512bh)_mm512_set1_epi32(pair))};
}
TM_INLINE void to_bfloat(uint16_t* p, F a) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(a.v)); }
TM_INLINE void to_codes(int8_t* p, I a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(a.v)); }
