// Attention of a few query rows over a stretch of the cache. Included by kernels.cpp, once per instruction set.
//
// A cached row holds all kv heads. Where a job has all of them, keys and values are read in the order of memory, 16 positions
// at a time, and fetched one block ahead: head after head, the same reading took twice as long.
#pragma once
#include "rows.h"

namespace {

// 16 keys of one head, turned: [pair of entries][16 keys], a pair being one float or two bfloat16.
void turn_keys(const uint32_t* const* keys, int words, uint32_t* out) {
  int d = 0;
#if TM_AVX512
  for (; d + 16 <= words; d += 16) {
    __m512i r[16], t[16];
    for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_si512(keys[i] + d);
    for (int i = 0; i < 8; i++) {
      t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
      t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) {
      r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
      r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
      r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
      r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    for (int i = 0; i < 4; i++) {
      t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
      t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
      t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
      t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
    }
    for (int i = 0; i < 8; i++) {
      _mm512_storeu_si512(out + 16 * (d + i), _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88));
      _mm512_storeu_si512(out + 16 * (d + 8 + i), _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd));
    }
  }
#endif
  for (; d < words; d++)
    for (int i = 0; i < 16; i++) out[16 * d + i] = keys[i][d];
}

template <bool WIDE>
TM F word(F sums, const uint32_t* turned, const uint8_t* q, int d) {
  if (WIDE) return fma(load((const float*)turned + 16 * d), set1(((const float*)q)[d]), sums);
  return dot2(sums, (const uint16_t*)turned + 32 * d, (const uint16_t*)q + 2 * d);
}

// Scores of `N` rows against 16 turned keys: even and odd words apart, then together.
template <int N, bool WIDE>
void score(const Attend& job, const uint8_t* q, int64_t bytes, const uint32_t* turned, int words, float* out) {
  F sums[N][2];
  for (int r = 0; r < N; r++) sums[r][0] = sums[r][1] = set1(0);
  int d = 0;
  for (; d + 2 <= words; d += 2)
    for (int r = 0; r < N; r++) {
      sums[r][0] = word<WIDE>(sums[r][0], turned, q + r * bytes, d);
      sums[r][1] = word<WIDE>(sums[r][1], turned, q + r * bytes, d + 1);
    }
  if (d < words)
    for (int r = 0; r < N; r++) sums[r][0] = word<WIDE>(sums[r][0], turned, q + r * bytes, d);
  for (int r = 0; r < N; r++) store(out + r * SPLIT, mul(add(sums[r][0], sums[r][1]), set1(job.scale)));
}

// Entries [from, from + 16) of a cached row as floats; lanes behind head_dim are zero.
template <int FORM, bool WHOLE>
TM F value(const uint8_t* row, int from, int head_dim) {
  if (!WHOLE) {
    alignas(64) uint8_t copy[64] = {};
    const int size = FORM == AS_FLOAT32 ? 4 : FORM == AS_BFLOAT16 ? 2 : 1;
    memcpy(copy, row + from * size, (size_t)((head_dim - from < 16 ? head_dim - from : 16) * size));
    return value<FORM, true>(copy, 0, 16);
  }
  if (FORM == AS_FLOAT32) return load((const float*)row + from);
  if (FORM == AS_BFLOAT16) return bfloat((const uint16_t*)row + from);
  return from_bytes((const int8_t*)row + from);
}

// N rows: weights [N][SPLIT] times the values of `count` positions, W registers of 16 entries at a time, position after
// position, on top of what is there.
template <int N, int W, int FORM, bool WHOLE>
void weigh(const Attend& job, const uint8_t* const* values, const float* weights, int count, int from, float* out) {
  const int width = (job.head_dim + 15) / 16 * 16;
  F sums[N][W];
  for (int r = 0; r < N; r++)
    for (int i = 0; i < W; i++) sums[r][i] = load(out + r * width + from + 16 * i);
  for (int p = 0; p < count; p++) {
    F part[W];
    for (int i = 0; i < W; i++) part[i] = value<FORM, WHOLE>(values[p], from + 16 * i, job.head_dim);
    for (int r = 0; r < N; r++) {
      const F weight = set1(weights[r * SPLIT + p]);
      for (int i = 0; i < W; i++) sums[r][i] = fma(weight, part[i], sums[r][i]);
    }
  }
  for (int r = 0; r < N; r++)
    for (int i = 0; i < W; i++) store(out + r * width + from + 16 * i, sums[r][i]);
}

template <int N, int FORM>
void weigh_all(const Attend& job, const uint8_t* const* values, const float* weights, int count, float* out) {
  int from = 0;
  for (; from + 64 <= job.head_dim; from += 64) weigh<N, 4, FORM, true>(job, values, weights, count, from, out);
  for (; from + 16 <= job.head_dim; from += 16) weigh<N, 1, FORM, true>(job, values, weights, count, from, out);
  if (from < job.head_dim) weigh<N, 1, FORM, false>(job, values, weights, count, from, out);
}

// Exponentials of one row's scores, zero where it may not look; notes the largest and the total.
void soften(const Attend& job, int row, float* scores, int count) {
  const int padded = (count + 15) / 16 * 16;
  if (job.softcap > 0) softcap(scores, count, job.softcap);
  const int64_t first = job.first[row % job.num_rows] - job.begin, last = job.last[row % job.num_rows] - job.begin;
  for (int p = 0; p < first && p < padded; p++) scores[p] = -INFINITY;
  for (int p = last > 0 ? (int)last : 0; p < padded; p++) scores[p] = -INFINITY;
  F most = load(scores);
  for (int p = 16; p < padded; p += 16) most = max(most, load(scores + p));
  const float best = largest(most);
  job.best[row] = best;
  job.total[row] = 0;
  if (best == -INFINITY) {  // sees nothing here
    memset(scores, 0, sizeof(float) * (size_t)padded);
    return;
  }
  for (int p = 0; p < padded; p += 16) store(scores + p, exp(sub(load(scores + p), set1(best))));
  for (int p = 0; p < first && p < padded; p++) scores[p] = 0;
  for (int p = last > 0 ? (int)last : 0; p < padded; p++) scores[p] = 0;
  F total = set1(0);
  for (int p = 0; p < padded; p += 16) total = add(total, load(scores + p));
  job.total[row] = sum(total);
}

int64_t align(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Room that attend needs, cut up. Keys in bytes are turned as bfloat16, which holds them exactly.
struct Room {
  uint8_t* queries;   // [heads * rows] of query_bytes
  float* scores;      // [heads * rows][SPLIT]
  uint32_t* turned;   // [words][16]
  uint32_t* widened;  // [16] keys of words: those in bytes, and those of odd length
  int64_t query_bytes;
};

Room cut(const Attend& job) {
  uint8_t* at = job.scratch;
  Room room;
  const int64_t rows = (int64_t)job.num_heads * job.num_rows;
  room.query_bytes = align(4 * ((int64_t)job.head_dim + 16));
  room.scores = (float*)at, at += rows * SPLIT * 4;
  room.queries = at, at += rows * room.query_bytes;
  room.turned = (uint32_t*)at, at += align(16 * 4 * ((int64_t)job.head_dim + 1));
  room.widened = (uint32_t*)at;
  return room;
}

int64_t slot_of(const Attend& job, int64_t position) { return job.base >= 0 ? job.base + position : job.slots[position]; }

constexpr int bytes_of(int form) { return form == AS_FLOAT32 ? 4 : form == AS_BFLOAT16 ? 2 : 1; }

// Where the rows of one head and up to SPLIT positions lie.
template <int FORM>
void find(const Attend& job, const void* cache, int head, int from, int count, const uint8_t** rows) {
  const int64_t bytes = bytes_of(FORM) * (int64_t)job.head_dim;
  for (int p = 0; p < count; p++)
    rows[p] = (const uint8_t*)cache + (slot_of(job, job.begin + from + p) * job.num_kv_heads + job.head + head) * bytes;
}

// A key as words: bytes become bfloat16, a key of odd length gets a zero behind it.
template <int FORM>
const uint32_t* words_of(const Attend& job, const uint8_t* key, int words, uint32_t* room) {
  if (FORM == AS_INT8) {
    uint16_t* numbers = (uint16_t*)room;
    for (int d = 0; d < 2 * words; d += 16) {
      const F part = d + 16 <= job.head_dim ? from_bytes((const int8_t*)key + d) : value<FORM, false>(key, d, job.head_dim);
      to_bfloat(numbers + d, part);
    }
    return room;
  }
  if (FORM == AS_BFLOAT16 && job.head_dim % 2) {
    room[words - 1] = 0;
    memcpy(room, key, 2 * (size_t)job.head_dim);
    return room;
  }
  return (const uint32_t*)key;
}

// Queries in the form of the keys.
template <int FORM>
void narrow(const Attend& job, const Room& room) {
  for (int r = 0; r < job.num_heads * job.num_rows; r++) {
    uint8_t* to = room.queries + r * room.query_bytes;
    for (int d = 0; d < job.head_dim; d += 16)  // padded with zeros
      if (FORM == AS_FLOAT32)
        store((float*)to + d, load(job.q[r] + d));
      else
        to_bfloat((uint16_t*)to + d, load(job.q[r] + d));
  }
}

// Scores of one head's rows against the 16 positions from `from` on; behind the last they are the last one's.
template <int FORM>
void score_block(const Attend& job, const Room& room, int head, int from, int count) {
  constexpr bool wide = FORM == AS_FLOAT32;
  const int words = wide ? job.head_dim : (job.head_dim + 1) / 2;
  const uint8_t* keys[16];
  find<FORM>(job, job.k, head, from, count, keys);
  for (int i = count; i < 16; i++) keys[i] = keys[count - 1];
  const uint32_t* block[16];
  for (int i = 0; i < 16; i++) block[i] = words_of<FORM>(job, keys[i], words, room.widened + i * ((words + 7) / 8 * 8));
  turn_keys(block, words, room.turned);
  const int first = head * job.num_rows;
  const uint8_t* q = room.queries + first * room.query_bytes;
  float* out = room.scores + (int64_t)first * SPLIT + from;
  int r = 0;
#define TM_ROWS(N) score<N, wide>(job, q + r * room.query_bytes, room.query_bytes, room.turned, words, out + (int64_t)r * SPLIT)
  for (; r + 4 <= job.num_rows; r += 4) TM_ROWS(4);
  if (job.num_rows - r == 3) TM_ROWS(3);
  if (job.num_rows - r == 2) TM_ROWS(2);
  if (job.num_rows - r == 1) TM_ROWS(1);
#undef TM_ROWS
  if (FORM != AS_INT8) return;
  alignas(64) float scales[16] = {};
  for (int i = 0; i < count; i++) scales[i] = job.k_scales[slot_of(job, job.begin + from + i) * job.num_kv_heads + job.head + head];
  for (r = 0; r < job.num_rows; r++) store(out + (int64_t)r * SPLIT, mul(load(out + (int64_t)r * SPLIT), load(scales)));
}

template <int FORM>
void weigh_block(const Attend& job, const Room& room, int head, int from, int count) {
  const uint8_t* values[SPLIT];
  find<FORM>(job, job.v, head, from, count, values);
  const int first = head * job.num_rows, width = (job.head_dim + 15) / 16 * 16;
  float* weights = room.scores + (int64_t)first * SPLIT + from;
  float* out = job.values + (int64_t)first * width;
  if (FORM == AS_INT8)
    for (int i = 0; i < count; i++) {
      const float scale = job.v_scales[slot_of(job, job.begin + from + i) * job.num_kv_heads + job.head + head];
      for (int r = 0; r < job.num_rows; r++) weights[(int64_t)r * SPLIT + i] *= scale;
    }
  int r = 0;
#define TM_ROWS(N) weigh_all<N, FORM>(job, values, weights + (int64_t)r * SPLIT, count, out + (int64_t)r * width)
  for (; r + 4 <= job.num_rows; r += 4) TM_ROWS(4);
  if (job.num_rows - r == 3) TM_ROWS(3);
  if (job.num_rows - r == 2) TM_ROWS(2);
  if (job.num_rows - r == 1) TM_ROWS(1);
#undef TM_ROWS
}

// The rows of up to 16 positions, from where they are into the second cache.
template <int FORM>
TM void fetch_rows(const Attend& job, const void* cache, int from) {
#if defined(__GNUC__)
  const int64_t bytes = bytes_of(FORM) * (int64_t)job.head_dim;
  for (int64_t p = job.begin + from; p < job.begin + from + 16 && p < job.end; p++) {
    const uint8_t* row = (const uint8_t*)cache + (slot_of(job, p) * job.num_kv_heads + job.head) * bytes;
    for (int64_t at = 0; at < bytes * job.num_heads; at += 64) __builtin_prefetch(row + at, 0, 2);
  }
#endif
}

template <int FORM>
void attend_in(const Attend& job) {
  const int count = (int)(job.end - job.begin), width = (job.head_dim + 15) / 16 * 16;
  const Room room = cut(job);
  narrow<FORM>(job, room);
  for (int from = 0; from < count; from += 16) {
    fetch_rows<FORM>(job, job.k, from + 16), fetch_rows<FORM>(job, job.v, from);
    for (int head = 0; head < job.num_heads; head++)
      score_block<FORM>(job, room, head, from, count - from < 16 ? count - from : 16);
  }
  for (int r = 0; r < job.num_heads * job.num_rows; r++)
    soften(job, r, room.scores + (int64_t)r * SPLIT, count);
  memset(job.values, 0, sizeof(float) * (size_t)(job.num_heads * job.num_rows * width));
  const int step = job.num_heads > 1 ? 16 : SPLIT;  // one head's values are near enough
  for (int from = 0; from < count; from += step)
    for (int head = 0; head < job.num_heads; head++)
      weigh_block<FORM>(job, room, head, from, count - from < step ? count - from : step);
}

void attend(const Attend& job) {
  if (job.cache_form == AS_FLOAT32)
    attend_in<AS_FLOAT32>(job);
  else if (job.cache_form == AS_BFLOAT16)
    attend_in<AS_BFLOAT16>(job);
  else
    attend_in<AS_INT8>(job);
}

}  // namespace
