// Vectors with AVX-512 (F, BW, VL and DQ, also VNNI and BF16 where the processor has them): one register. Included by vector.h,
// which describes the functions.
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

// Makes gcc write values that it still holds in registers to memory. gcc does not know that a tile load of the matrix unit reads
// that memory. It also replaces a store that is followed by scalar loads by shuffles, which are slower.
TM_INLINE void compiler_barrier() { asm volatile("" ::: "memory"); }

// See vector.h.
typedef __m512i Bytes64;
TM_INLINE Bytes64 load_bytes64(const uint8_t* p) { return _mm512_loadu_si512(p); }
TM_INLINE void store_bytes64(uint8_t* p, Bytes64 x) { _mm512_storeu_si512(p, x); }
TM_INLINE Bytes64 low_nibbles(Bytes64 a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
TM_INLINE Bytes64 high_nibbles(Bytes64 a) { return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15)); }
template <int LEFT> TM_INLINE Bytes64 with_bits(Bytes64 nibbles, Bytes64 bits, int mask) {
  const __m512i moved = LEFT < 0 ? _mm512_srli_epi16(bits, LEFT < 0 ? -LEFT : 0) : _mm512_slli_epi16(bits, LEFT < 0 ? 0 : LEFT);
  return _mm512_or_si512(nibbles, _mm512_and_si512(moved, _mm512_set1_epi8((char)mask)));
}
// The parts of vector/dots_vnni.h and vector/dots_pairs.h.
TM_INLINE Bytes64 broadcast4(const int8_t* x) {
  int32_t quad;
  memcpy(&quad, x, 4);
  return _mm512_set1_epi32(quad);
}
#if defined(__AVX512VNNI__)
TM_INLINE I add_dots(I sums, Bytes64 w, Bytes64 x) { return {_mm512_dpbusd_epi32(sums.v, w, x)}; }
#else
TM_INLINE Bytes64 zero_bytes() { return _mm512_setzero_si512(); }
TM_INLINE Bytes64 dot_pairs(Bytes64 w, Bytes64 x) { return _mm512_maddubs_epi16(w, x); }
TM_INLINE Bytes64 add_shorts(Bytes64 p, Bytes64 q) { return _mm512_add_epi16(p, q); }
TM_INLINE I sum_pairs(Bytes64 p) { return {_mm512_madd_epi16(p, _mm512_set1_epi16(1))}; }
TM_INLINE I sum_products(Bytes64 p, Bytes64 by) { return {_mm512_madd_epi16(p, by)}; }
TM_INLINE Bytes64 load_factors(const int8_t* p) {
  const __m512i words = from_bytes(p).v;
  return _mm512_or_si512(_mm512_slli_epi32(words, 16), _mm512_and_si512(words, _mm512_set1_epi32(0xffff)));
}
TM_INLINE Bytes64 without_offset(Bytes64 w) { return _mm512_xor_si512(w, _mm512_set1_epi8((char)128)); }
TM_INLINE Bytes64 at_once(Bytes64 p) {
  asm("" : "+v"(p));
  return p;
}
TM_INLINE I at_once(I sums) {
  asm("" : "+v"(sums.v));
  return sums;
}
TM_INLINE Bytes64 abs_bytes(Bytes64 w) { return _mm512_abs_epi8(w); }
TM_INLINE Bytes64 with_signs_of(Bytes64 w, Bytes64 x) {
  return _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(w), _mm512_setzero_si512(), x);
}
#endif

// Words are pairs of bfloat16.
#if defined(__AVX512BF16__)
TM_INLINE __m512 dot2_16(__m512 sums, __m512i w, __m512i x) { return _mm512_dpbf16_ps(sums, (__m512bh)w, (__m512bh)x); }
TM_INLINE void to_bfloat(uint16_t* p, F a) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(a.v)); }
#else
TM_INLINE __m512 dot2_16(__m512 sums, __m512i w, __m512i x) {
  const __m512i high = _mm512_set1_epi32((int)0xffff0000);
  const __m512 w1 = _mm512_castsi512_ps(_mm512_and_si512(w, high)), w0 = _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
  const __m512 x1 = _mm512_castsi512_ps(_mm512_and_si512(x, high)), x0 = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
  return _mm512_fmadd_ps(w0, x0, _mm512_fmadd_ps(w1, x1, sums));
}
TM_INLINE void to_bfloat(uint16_t* p, F a) {
  const __m512i bits = _mm512_castps_si512(a.v), high = _mm512_srli_epi32(bits, 16), one = _mm512_set1_epi32(1);
  const __m512i last = _mm512_and_si512(high, one), half = _mm512_add_epi32(last, _mm512_set1_epi32(0x7fff));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16), nan = _mm512_or_si512(high, _mm512_set1_epi32(64));
  const __mmask16 subnormal = _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x7f800000));
  const __m512i whole = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), rounded, nan);
  const __m512i all = _mm512_mask_and_epi32(whole, subnormal, high, _mm512_set1_epi32(0x8000));
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(all));
}
#endif
TM_INLINE F dot2(F sums, const uint16_t* w, const uint16_t* x) {
  int32_t pair;
  memcpy(&pair, x, 4);
  return {dot2_16(sums.v, _mm512_loadu_si512(w), _mm512_set1_epi32(pair))};
}
TM_INLINE void to_codes(int8_t* p, I a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(a.v)); }
