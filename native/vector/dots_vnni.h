// Integer dot products by VNNI (vpdpbusd): four products of a code up to 255 and an activation are added to a sum of 32 bits, with
// nothing cut off in between. Included by vector.h, which describes the functions.
#pragma once
constexpr bool SIGNED_BYTES = false;
TM_INLINE I dot4(I sums, Bytes64 w, const int8_t* x) { return add_dots(sums, w, broadcast4(x)); }
TM_INLINE I dot4_byte(I sums, Bytes64 w, const int8_t* x) { return dot4(sums, w, x); }
