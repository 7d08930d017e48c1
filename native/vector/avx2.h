// Vectors with AVX2, FMA and F16C: two registers. Included by vector.h, which describes the functions.
#pragma once
struct F { __m256 a, b; };
struct I { __m256i a, b; };

TM_INLINE F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
TM_INLINE void store(float* p, F x) { _mm256_storeu_ps(p, x.a), _mm256_storeu_ps(p + 8, x.b); }
TM_INLINE F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
TM_INLINE F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
TM_INLINE F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
TM_INLINE F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
TM_INLINE F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
TM_INLINE F fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
TM_INLINE F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
TM_INLINE F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
TM_INLINE F abs(F x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
TM_INLINE F round(F x) {
  return {_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
TM_INLINE F from_int(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
TM_INLINE I to_int(F x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
TM_INLINE I iset1(int x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
TM_INLINE I times16(I x) { return {_mm256_slli_epi32(x.a, 4), _mm256_slli_epi32(x.b, 4)}; }
TM_INLINE I iadd(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
TM_INLINE I imul(I x, I y) { return {_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)}; }
TM_INLINE I from_bytes(const int8_t* p) {
  return {_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)), _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8)))};
}
TM_INLINE F where_less(F x, F y, F yes, F no) {
  return {_mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)),
          _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ))};
}
TM_INLINE __m256 to_half8(__m256 x) { return _mm256_cvtph_ps(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)); }
TM_INLINE F to_half(F x) { return {to_half8(x.a), to_half8(x.b)}; }
TM_INLINE F half(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
TM_INLINE void store_half(uint16_t* p, F x) {
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128((__m128i*)(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
TM_INLINE __m256 bfloat8(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
TM_INLINE F bfloat(const uint16_t* p) { return {bfloat8(p), bfloat8(p + 8)}; }
TM_INLINE __m256i bfloat_words8(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x), high = _mm256_srli_epi32(bits, 16), exponent = _mm256_set1_epi32(0x7f800000);
  const __m256i half = _mm256_add_epi32(_mm256_and_si256(high, _mm256_set1_epi32(1)), _mm256_set1_epi32(0x7fff));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16), nan = _mm256_or_si256(high, _mm256_set1_epi32(64));
  const __m256i subnormal = _mm256_cmpeq_epi32(_mm256_and_si256(bits, exponent), _mm256_setzero_si256());
  const __m256i whole = _mm256_blendv_epi8(rounded, nan, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
  return _mm256_blendv_epi8(whole, _mm256_and_si256(high, _mm256_set1_epi32(0x8000)), subnormal);
}
TM_INLINE void to_bfloat(uint16_t* p, F x) {
  const __m256i words = _mm256_packus_epi32(bfloat_words8(x.a), bfloat_words8(x.b));
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(words, 0xd8));
}
TM_INLINE void to_codes(int8_t* p, I x) {
  const __m256i last = _mm256_set1_epi32(255);
  const __m256i words = _mm256_packus_epi32(_mm256_and_si256(x.a, last), _mm256_and_si256(x.b, last));
  const __m256i sorted = _mm256_permute4x64_epi64(words, 0xd8);
  _mm_storeu_si128((__m128i*)p, _mm_packus_epi16(_mm256_castsi256_si128(sorted), _mm256_extracti128_si256(sorted, 1)));
}
TM_INLINE __m256 scale8(__m256 a, __m256 n) {  // n is an integer from -126 to 127
  return _mm256_mul_ps(
      a, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23)));
}
TM_INLINE F scale2(F a, F n) { return {scale8(a.a, n.a), scale8(a.b, n.b)}; }

struct Bytes64 { __m256i a, b; };
TM_INLINE Bytes64 load_bytes64(const uint8_t* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 32))};
}
TM_INLINE void store_bytes64(uint8_t* p, Bytes64 x) {
  _mm256_storeu_si256((__m256i*)p, x.a), _mm256_storeu_si256((__m256i*)(p + 32), x.b);
}
TM_INLINE Bytes64 low_nibbles(Bytes64 x) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask)};
}
TM_INLINE Bytes64 high_nibbles(Bytes64 x) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(_mm256_srli_epi16(x.a, 4), mask), _mm256_and_si256(_mm256_srli_epi16(x.b, 4), mask)};
}
template <int LEFT> TM_INLINE __m256i with_bits32(__m256i nibbles, __m256i bits, int mask) {
  const __m256i moved = LEFT < 0 ? _mm256_srli_epi16(bits, LEFT < 0 ? -LEFT : 0) : _mm256_slli_epi16(bits, LEFT < 0 ? 0 : LEFT);
  return _mm256_or_si256(nibbles, _mm256_and_si256(moved, _mm256_set1_epi8((char)mask)));
}
template <int LEFT> TM_INLINE Bytes64 with_bits(Bytes64 nibbles, Bytes64 bits, int mask) {
  return {with_bits32<LEFT>(nibbles.a, bits.a, mask), with_bits32<LEFT>(nibbles.b, bits.b, mask)};
}
// The parts of vector/dots_vnni.h and vector/dots_pairs.h.
TM_INLINE Bytes64 broadcast4(const int8_t* x) {
  int32_t quad;
  memcpy(&quad, x, 4);
  const __m256i all = _mm256_set1_epi32(quad);
  return {all, all};
}
#if defined(__AVXVNNI__)
TM_INLINE I add_dots(I sums, Bytes64 w, Bytes64 x) {
  return {_mm256_dpbusd_avx_epi32(sums.a, w.a, x.a), _mm256_dpbusd_avx_epi32(sums.b, w.b, x.b)};
}
#else
TM_INLINE Bytes64 zero_bytes() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
TM_INLINE Bytes64 dot_pairs(Bytes64 w, Bytes64 x) { return {_mm256_maddubs_epi16(w.a, x.a), _mm256_maddubs_epi16(w.b, x.b)}; }
TM_INLINE Bytes64 add_shorts(Bytes64 p, Bytes64 q) { return {_mm256_add_epi16(p.a, q.a), _mm256_add_epi16(p.b, q.b)}; }
TM_INLINE I sum_pairs(Bytes64 p) {
  const __m256i ones = _mm256_set1_epi16(1);
  return {_mm256_madd_epi16(p.a, ones), _mm256_madd_epi16(p.b, ones)};
}
TM_INLINE I sum_products(Bytes64 p, Bytes64 by) { return {_mm256_madd_epi16(p.a, by.a), _mm256_madd_epi16(p.b, by.b)}; }
TM_INLINE __m256i twice8(__m256i x) { return _mm256_or_si256(_mm256_slli_epi32(x, 16), _mm256_and_si256(x, _mm256_set1_epi32(0xffff))); }
TM_INLINE Bytes64 load_factors(const int8_t* p) { return {twice8(from_bytes(p).a), twice8(from_bytes(p).b)}; }
TM_INLINE Bytes64 without_offset(Bytes64 w) {
  const __m256i middle = _mm256_set1_epi8((char)128);
  return {_mm256_xor_si256(w.a, middle), _mm256_xor_si256(w.b, middle)};
}
TM_INLINE Bytes64 at_once(Bytes64 p) {
  asm("" : "+x"(p.a), "+x"(p.b));
  return p;
}
TM_INLINE I at_once(I sums) {
  asm("" : "+x"(sums.a), "+x"(sums.b));
  return sums;
}
TM_INLINE Bytes64 abs_bytes(Bytes64 w) { return {_mm256_abs_epi8(w.a), _mm256_abs_epi8(w.b)}; }
TM_INLINE Bytes64 with_signs_of(Bytes64 w, Bytes64 x) { return {_mm256_sign_epi8(x.a, w.a), _mm256_sign_epi8(x.b, w.b)}; }
#endif
TM_INLINE __m256 dot2_8(__m256 sums, __m256i w, __m256i x) {
  const __m256i high = _mm256_set1_epi32((int)0xffff0000);
  const __m256 w1 = _mm256_castsi256_ps(_mm256_and_si256(w, high)), w0 = _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
  const __m256 x1 = _mm256_castsi256_ps(_mm256_and_si256(x, high)), x0 = _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
  return _mm256_fmadd_ps(w0, x0, _mm256_fmadd_ps(w1, x1, sums));
}
TM_INLINE F dot2(F sums, const uint16_t* w, const uint16_t* x) {
  int32_t pair;
  memcpy(&pair, x, 4);
  const __m256i all = _mm256_set1_epi32(pair);
  return {dot2_8(sums.a, _mm256_loadu_si256((const __m256i*)w), all),
          dot2_8(sums.b, _mm256_loadu_si256((const __m256i*)(w + 16)), all)};
}
