// Sums of integer dot products where an instruction adds to 32 bits. Included by vector.h, which describes the functions.
#pragma once
typedef I NibbleSums, Factors;
constexpr bool TWO_QUADS_AT_MOST = false;
TM_INLINE void start(I& sums, I begin) { sums = begin; }
TM_INLINE I finish(I sums, I) { return sums; }
TM_INLINE Factors load_factors(const int8_t* p) { return from_bytes(p); }
TM_INLINE void start_factored(I& sums, I&, Factors, int32_t offset) { sums = iset1(4 * offset); }
TM_INLINE I add_factored(I dots, I sums, Factors by) { return iadd(dots, imul(sums, by)); }
