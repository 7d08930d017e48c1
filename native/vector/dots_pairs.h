// Integer dot products without VNNI: by vpmaddubsw, which adds two products and cuts off the sum to 16 bits. Included by
// vector.h, which describes the functions.
#pragma once
// Sums of two products in 16 bits. They cannot overflow in a group, 16 products of a code up to 15 and an activation up to 127,
// nor in half a group of codes up to 31.
struct NibbleSums { Bytes64 pairs; };
constexpr bool SIGNED_BYTES = true;
TM_INLINE void start(NibbleSums& sums, I) { sums.pairs = zero_bytes(); }
TM_INLINE I finish(NibbleSums sums, I begin) { return iadd(begin, sum_pairs(sums.pairs)); }
TM_INLINE void start(I& sums, I begin) { sums = begin; }
TM_INLINE I finish(I sums, I) { return sums; }
TM_INLINE NibbleSums dot4(NibbleSums sums, Bytes64 w, const int8_t* x) {
  return {add_shorts(sums.pairs, dot_pairs(w, broadcast4(x)))};
}
// The same for codes up to 127, whose sums need 32 bits.
TM_INLINE I dot4(I sums, Bytes64 w, const int8_t* x) { return iadd(sums, sum_pairs(dot_pairs(w, broadcast4(x)))); }
// vpmaddubsw wants one unsigned factor: the sign of the weight is moved to the activation, which is never -128. Two products of up
// to 128 * 127 stay within 16 bits.
TM_INLINE I dot4_byte(I sums, Bytes64 w, const int8_t* x) {
  const Bytes64 codes = without_offset(w);
  return iadd(sums, sum_pairs(dot_pairs(abs_bytes(codes), with_signs_of(codes, broadcast4(x)))));
}
