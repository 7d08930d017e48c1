// Conversion of activations to the format that weights are multiplied with: float32, bfloat16, or int8 with a scale per group
// of 32 (the largest absolute value / 127). Included by kernels.cpp, once per instruction set.
#pragma once
#include "kernels/kernels.h"
#include "vector/vector.h"

namespace {

// Groups of 32 floats and the places of their codes and figures: pointers and index of the first group, and the distance from
// each to the next.
struct Groups {
  const float* x;
  int8_t* codes;
  int64_t group, next_x, next_code, next_group;

  Groups from(int64_t i) const {
    return {x + i * next_x, codes + i * next_code, group + i * next_group, next_x, next_code, next_group};
  }
};

void quantize_one(const Activations& out, const Groups& group) {
  const F a = load(group.x), b = load(group.x + 16);
  const float max = reduce_max_abs(a, b);
  const float inverse = max > 0 ? 127.0f / max : 0.0f;
  const I low = to_int(mul(a, set1(inverse))), high = to_int(mul(b, set1(inverse)));
  to_codes(group.codes, low), to_codes(group.codes + 16, high);
  const int32_t total = reduce_sum_ints(low, high), first_total = reduce_sum_ints(low, iset1(0));
  const float scale = max / 127.0f;
  out.scales[group.group] = scale, out.scaled_sums[group.group] = scale * (float)total;
  out.offsets[group.group] = (int32_t)(-8u * (uint32_t)total);  // unsigned: NaN became INT_MIN, which would overflow
  out.first_offsets[group.group] = (int32_t)(-8u * (uint32_t)first_total);
}

#if defined(TM_AVX512)
// Lane i of the result is the reduction of all lanes of vector i.
template <class Reduce> TM_INLINE __m512i reduce_each(const __m512i (&rows)[16], Reduce reduce) {
  __m512i fours[4];
  TM_UNROLL for (int i = 0; i < 4; i++) {
    const __m512i* r = rows + 4 * i;
    const __m512i ab = reduce(_mm512_unpacklo_epi32(r[0], r[1]), _mm512_unpackhi_epi32(r[0], r[1]));
    const __m512i cd = reduce(_mm512_unpacklo_epi32(r[2], r[3]), _mm512_unpackhi_epi32(r[2], r[3]));
    fours[i] = reduce(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  }
  const __m512i ab = reduce(_mm512_shuffle_i32x4(fours[0], fours[1], 0x88), _mm512_shuffle_i32x4(fours[0], fours[1], 0xdd));
  const __m512i cd = reduce(_mm512_shuffle_i32x4(fours[2], fours[3], 0x88), _mm512_shuffle_i32x4(fours[2], fours[3], 0xdd));
  return reduce(_mm512_shuffle_i32x4(ab, cd, 0x88), _mm512_shuffle_i32x4(ab, cd, 0xdd));
}

// Stores 16 words of 32 bits one behind the other (IN_ROW), or `next` words apart.
template <bool IN_ROW> TM_INLINE void store_each(void* to, int64_t next, __m512i lanes) {
  if (IN_ROW) return _mm512_storeu_si512(to, lanes);
  alignas(64) int32_t each[16];
  _mm512_store_si512(each, lanes);
  compiler_barrier();
  for (int i = 0; i < 16; i++) ((int32_t*)to)[i * next] = each[i];
}

// Sixteen groups at once, with the same results: their divisions and reductions do not wait for each other. IN_ROW: the groups
// follow each other in one row.
template <bool IN_ROW> void quantize_16(const Activations& out, const Groups& groups) {
  const int64_t next_x = IN_ROW ? (int64_t)GROUP : groups.next_x, next_code = IN_ROW ? (int64_t)GROUP : groups.next_code;
  __m512i rows[16], first_halves[16];
  TM_UNROLL for (int i = 0; i < 16; i++) {
    const float* x = groups.x + i * next_x;
    rows[i] = max_abs_bits(load(x), load(x + 16));
  }
  const __m512 max = _mm512_castsi512_ps(reduce_each(rows, [](__m512i a, __m512i b) { return _mm512_max_epi32(a, b); }));
  const __mmask16 some = _mm512_cmp_ps_mask(max, _mm512_setzero_ps(), _CMP_GT_OQ);
  alignas(64) float inverses[16];
  _mm512_store_ps(inverses, _mm512_maskz_div_ps(some, _mm512_set1_ps(127.0f), max));
  compiler_barrier();
  const float* x = groups.x;
  int8_t* codes = groups.codes;
  for (int i = 0; i < 16; i++, x += next_x, codes += next_code) {
    const F inverse = set1(inverses[i]);
    const I low = to_int(mul(load(x), inverse)), high = to_int(mul(load(x + 16), inverse));
    to_codes(codes, low), to_codes(codes + 16, high);
    rows[i] = _mm512_add_epi32(low.v, high.v), first_halves[i] = low.v;
  }
  const auto add = [](__m512i a, __m512i b) { return _mm512_add_epi32(a, b); };
  const __m512i totals = reduce_each(rows, add), first_totals = reduce_each(first_halves, add);
  const __m512 scales = _mm512_div_ps(max, _mm512_set1_ps(127.0f));
  store_each<IN_ROW>(out.scales + groups.group, groups.next_group, _mm512_castps_si512(scales));
  store_each<IN_ROW>(out.scaled_sums + groups.group, groups.next_group,
                     _mm512_castps_si512(_mm512_mul_ps(scales, _mm512_cvtepi32_ps(totals))));
  store_each<IN_ROW>(out.offsets + groups.group, groups.next_group,
                     _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(totals, 3)));
  store_each<IN_ROW>(out.first_offsets + groups.group, groups.next_group,
                     _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(first_totals, 3)));
}
#endif

void quantize_groups(const Activations& out, const Groups& groups, int64_t count) {
  int64_t i = 0;
#if defined(TM_AVX512)
  const auto convert = groups.next_group == 1 ? quantize_16<true> : quantize_16<false>;
  for (; i + 16 <= count; i += 16) convert(out, groups.from(i));
#endif
  for (; i < count; i++) quantize_one(out, groups.from(i));
}

void quantize(const float* x, int64_t stride, const Activations& out, int first, int count, int from, int to) {
  const int64_t begin = (int64_t)first * out.k + from, num_groups = (to - from) / GROUP, groups = out.k / GROUP;
  if (num_groups == 1) return quantize_groups(out, {x, out.codes + begin, begin / GROUP, stride, out.k, groups}, count);
  for (int64_t t = 0; t < count; t++)
    quantize_groups(out, {x + t * stride, out.codes + begin + t * out.k, begin / GROUP + t * groups, GROUP, GROUP, 1}, num_groups);
}

void convert(const float* x, int64_t stride, const Activations& out, int first, int count, int from, int to) {
  if (out.format == AS_INT8) return quantize(x, stride, out, first, count, from, to);
  for (int t = 0; t < count; t++)
    for (int i = from; i < to; i += 16) {
      const F a = load(x + t * stride + i - from);
      const int64_t at = (int64_t)(first + t) * out.k + i;
      if (out.format == AS_FLOAT32)
        store(out.floats + at, a);
      else
        to_bfloat(out.bfloats + at, a);
    }
}

}  // namespace
