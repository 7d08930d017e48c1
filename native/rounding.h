// Activations into the form that weights want. Included by kernels.cpp, once per instruction set.
#pragma once
#include "kernels.h"
#include "vec.h"

namespace {

// Groups of 32 floats, and where the bytes and the figures of each go: the first one's places, and how far apart they are.
struct Groups {
  const float* x;
  int8_t* bytes;
  int64_t at, next_x, next_bytes, next_at;

  Groups from(int64_t i) const { return {x + i * next_x, bytes + i * next_bytes, at + i * next_at, next_x, next_bytes, next_at}; }
};

void put_one(const Act& act, const Groups& group) {
  const F a = load(group.x), b = load(group.x + 16);
  const float most = largest_size(a, b);
  const float inverse = most > 0 ? 127.0f / most : 0.0f;
  const I low = to_int(mul(a, set1(inverse))), high = to_int(mul(b, set1(inverse)));
  to_bytes(group.bytes, low), to_bytes(group.bytes + 16, high);
  const int32_t total = sum_ints(low, high);
  const float scale = most / 127.0f;
  act.scales[group.at] = scale, act.moments[group.at] = scale * (float)total;
  act.offsets[group.at] = (int32_t)(-8u * (uint32_t)total);  // what is no number became the largest int
}

#if defined(TM_AVX512)
// Of sixteen registers, each one's lanes folded into one lane of the result.
template <class Fold> TM __m512i fold_each(const __m512i (&rows)[16], Fold fold) {
  __m512i fours[4];
  TM_UNROLL for (int i = 0; i < 4; i++) {
    const __m512i* r = rows + 4 * i;
    const __m512i ab = fold(_mm512_unpacklo_epi32(r[0], r[1]), _mm512_unpackhi_epi32(r[0], r[1]));
    const __m512i cd = fold(_mm512_unpacklo_epi32(r[2], r[3]), _mm512_unpackhi_epi32(r[2], r[3]));
    fours[i] = fold(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  }
  const __m512i ab = fold(_mm512_shuffle_i32x4(fours[0], fours[1], 0x88), _mm512_shuffle_i32x4(fours[0], fours[1], 0xdd));
  const __m512i cd = fold(_mm512_shuffle_i32x4(fours[2], fours[3], 0x88), _mm512_shuffle_i32x4(fours[2], fours[3], 0xdd));
  return fold(_mm512_shuffle_i32x4(ab, cd, 0x88), _mm512_shuffle_i32x4(ab, cd, 0xdd));
}

// Sixteen lanes of 32 bits, one behind the other or `next` places apart.
template <bool ROW> TM void put_each(void* to, int64_t next, __m512i lanes) {
  if (ROW) return _mm512_storeu_si512(to, lanes);
  alignas(64) int32_t each[16];
  _mm512_store_si512(each, lanes);
  settle();
  for (int i = 0; i < 16; i++) ((int32_t*)to)[i * next] = each[i];
}

// Sixteen groups at once: the same figures, but what a group waits for is there for all of them together. ROW: they follow one
// another.
template <bool ROW> void put_sixteen(const Act& act, const Groups& groups) {
  const int64_t next_x = ROW ? (int64_t)GROUP : groups.next_x, next_bytes = ROW ? (int64_t)GROUP : groups.next_bytes;
  __m512i rows[16];
  TM_UNROLL for (int i = 0; i < 16; i++) {
    const float* x = groups.x + i * next_x;
    rows[i] = larger_size(load(x), load(x + 16));
  }
  const __m512 most = _mm512_castsi512_ps(fold_each(rows, [](__m512i a, __m512i b) { return _mm512_max_epi32(a, b); }));
  const __mmask16 some = _mm512_cmp_ps_mask(most, _mm512_setzero_ps(), _CMP_GT_OQ);
  alignas(64) float inverses[16];
  _mm512_store_ps(inverses, _mm512_maskz_div_ps(some, _mm512_set1_ps(127.0f), most));
  settle();
  const float* x = groups.x;
  int8_t* bytes = groups.bytes;
  for (int i = 0; i < 16; i++, x += next_x, bytes += next_bytes) {
    const F inverse = set1(inverses[i]);
    const I low = to_int(mul(load(x), inverse)), high = to_int(mul(load(x + 16), inverse));
    to_bytes(bytes, low), to_bytes(bytes + 16, high);
    rows[i] = _mm512_add_epi32(low.v, high.v);
  }
  const __m512i totals = fold_each(rows, [](__m512i a, __m512i b) { return _mm512_add_epi32(a, b); });
  const __m512 scales = _mm512_div_ps(most, _mm512_set1_ps(127.0f));
  put_each<ROW>(act.scales + groups.at, groups.next_at, _mm512_castps_si512(scales));
  put_each<ROW>(act.moments + groups.at, groups.next_at, _mm512_castps_si512(_mm512_mul_ps(scales, _mm512_cvtepi32_ps(totals))));
  put_each<ROW>(act.offsets + groups.at, groups.next_at, _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(totals, 3)));
}
#endif

void put_groups(const Act& act, const Groups& groups, int64_t count) {
  int64_t i = 0;
#if defined(TM_AVX512)
  const auto put = groups.next_at == 1 ? put_sixteen<true> : put_sixteen<false>;
  for (; i + 16 <= count; i += 16) put(act, groups.from(i));
#endif
  for (; i < count; i++) put_one(act, groups.from(i));
}

void put_bytes(const float* x, int64_t stride, const Act& act, int first, int count, int from, int to) {
  const int64_t begin = (int64_t)first * act.k + from, wide = (to - from) / GROUP, groups = act.k / GROUP;
  if (wide == 1) return put_groups(act, {x, act.bytes + begin, begin / GROUP, stride, act.k, groups}, count);
  for (int64_t t = 0; t < count; t++)
    put_groups(act, {x + t * stride, act.bytes + begin + t * act.k, begin / GROUP + t * groups, GROUP, GROUP, 1}, wide);
}

void put(const float* x, int64_t stride, const Act& act, int first, int count, int from, int to) {
  if (act.form == AS_INT8) return put_bytes(x, stride, act, first, count, from, to);
  for (int t = 0; t < count; t++)
    for (int i = from; i < to; i += 16) {
      const F a = load(x + t * stride + i - from);
      const int64_t at = (int64_t)(first + t) * act.k + i;
      if (act.form == AS_FLOAT32)
        store(act.floats + at, a);
      else
        to_bfloat(act.bfloats + at, a);
    }
}

}  // namespace
