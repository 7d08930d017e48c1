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
// at_once keeps gcc from computing all products of a group before it adds one of them: they do not fit into the registers.
TM_INLINE NibbleSums dot4(NibbleSums sums, Bytes64 w, const int8_t* x) {
  return {at_once(add_shorts(sums.pairs, dot_pairs(w, broadcast4(x))))};
}
// The same for codes up to 127, whose sums need 32 bits.
TM_INLINE I dot4(I sums, Bytes64 w, const int8_t* x) { return at_once(iadd(sums, sum_pairs(dot_pairs(w, broadcast4(x))))); }
// vpmaddubsw wants one unsigned factor: the sign of the weight is moved to the activation, which is never -128. Two products of up
// to 128 * 127 stay within 16 bits.
TM_INLINE I dot4_byte(I sums, Bytes64 w, const int8_t* x) {
  const Bytes64 codes = without_offset(w);
  return at_once(iadd(sums, sum_pairs(dot_pairs(abs_bytes(codes), with_signs_of(codes, broadcast4(x))))));
}
// Products of two quads of codes up to 63 fit into 16 bits, as does twice the offset of half a group. vpmaddwd multiplies both sums
// of a row by the row's factor, which is there twice, and adds the products.
constexpr bool TWO_QUADS_AT_MOST = true;
typedef Bytes64 Factors;
TM_INLINE I add_factored(I dots, NibbleSums sums, Factors by) { return at_once(iadd(dots, sum_products(sums.pairs, by))); }
TM_INLINE void start_factored(NibbleSums& sums, I& dots, Factors by, int32_t offset) {
  const int16_t both[2] = {(int16_t)(2 * offset), (int16_t)(2 * offset)};
  dots = add_factored(dots, {broadcast4((const int8_t*)both)}, by), start(sums, dots);
}
