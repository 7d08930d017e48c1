// Attention of a few query rows over a stretch of the cache. Included by kernels.cpp, once per instruction set.
//
// A cached row holds all kv heads. Where a job has all of them, keys and values are read in the order of memory, 16 positions
// at a time, and fetched two blocks ahead: head after head, the same reading took twice as long.
#pragma once
#include "rows.h"
#include "vec_attend.h"

namespace {

// 16 keys of one head, four words of each side by side: [words / 4][4][16], lane 4 j + i of block g being word i of key
// 4 j + g. A word is one float or two bfloat16.
void lay_out(const uint32_t* const* keys, int words, uint32_t* out) {
  int w = 0;
#if TM_AVX512
  for (; w + 16 <= words; w += 16)
    for (int g = 0; g < 4; g++) {
      const __m512i a = _mm512_loadu_si512(keys[g] + w), b = _mm512_loadu_si512(keys[4 + g] + w);
      const __m512i c = _mm512_loadu_si512(keys[8 + g] + w), d = _mm512_loadu_si512(keys[12 + g] + w);
      const __m512i ab = _mm512_shuffle_i32x4(a, b, 0x88), cd = _mm512_shuffle_i32x4(c, d, 0x88);
      const __m512i ab1 = _mm512_shuffle_i32x4(a, b, 0xdd), cd1 = _mm512_shuffle_i32x4(c, d, 0xdd);
      _mm512_storeu_si512(out + 16 * (w + g), _mm512_shuffle_i32x4(ab, cd, 0x88));
      _mm512_storeu_si512(out + 16 * (w + 4 + g), _mm512_shuffle_i32x4(ab1, cd1, 0x88));
      _mm512_storeu_si512(out + 16 * (w + 8 + g), _mm512_shuffle_i32x4(ab, cd, 0xdd));
      _mm512_storeu_si512(out + 16 * (w + 12 + g), _mm512_shuffle_i32x4(ab1, cd1, 0xdd));
    }
#endif
  for (; w < words; w += 4)
    for (int i = 0; i < 16; i++) memcpy(out + 16 * (w + i % 4) + i / 4 * 4, keys[i] + w, 16);
}

// Scores of `N` rows against 16 keys: each of four words in a row by itself, then together.
template <int N, bool WIDE>
void score(const Attend& job, const uint8_t* q, int64_t bytes, const uint32_t* keys, int words, float* out) {
  F sums[N][4];
  TM_UNROLL for (int r = 0; r < N; r++)
    TM_UNROLL for (int g = 0; g < 4; g++) sums[r][g] = set1(0);
  for (int w = 0; w < words; w += 4) {
    Quad x[N];
    TM_UNROLL for (int r = 0; r < N; r++) x[r] = quad(q + r * bytes + 4 * w);
    TM_UNROLL for (int g = 0; g < 4; g++) {
      const Line four = load_line((const uint8_t*)(keys + 16 * (w + g)));
      TM_UNROLL for (int r = 0; r < N; r++)
        sums[r][g] = WIDE ? fma_quad(sums[r][g], four, x[r]) : dot2_quad(sums[r][g], four, x[r]);
    }
  }
  TM_UNROLL for (int r = 0; r < N; r++) store(out + r * SPLIT, mul(fold(sums[r][0], sums[r][1], sums[r][2], sums[r][3]), set1(job.scale)));
}

// Entries [from, from + 16) of a cached row of floats or bytes, as floats; lanes behind head_dim are zero.
template <int FORM, bool WHOLE>
TM F value(const uint8_t* row, int from, int head_dim) {
  if (!WHOLE) {
    alignas(64) uint8_t copy[64] = {};
    const int size = FORM == AS_FLOAT32 ? 4 : 1;
    memcpy(copy, row + from * size, (size_t)((head_dim - from < 16 ? head_dim - from : 16) * size));
    return value<FORM, true>(copy, 0, 16);
  }
  if (FORM == AS_FLOAT32) return load((const float*)row + from);
  return from_bytes((const int8_t*)row + from);
}

// N rows: weights [N][SPLIT] times the values of `count` positions, W registers of 16 entries at a time, position after
// position, on top of what is there. at: bytes from the rows' beginnings to the first of these entries.
template <int N, int W, int FORM, bool WHOLE>
void weigh(const Attend& job, const uint8_t* const* values, int64_t at, const float* weights, int count, int from, float* out) {
  const int width = (job.head_dim + 15) / 16 * 16;
  F sums[N][W];
  TM_UNROLL for (int r = 0; r < N; r++)
    TM_UNROLL for (int i = 0; i < W; i++) sums[r][i] = load(out + r * width + from + 16 * i);
  for (int p = 0; p < count; p++) {
    F part[W];
    TM_UNROLL for (int i = 0; i < W; i++) part[i] = value<FORM, WHOLE>(values[p] + at, from + 16 * i, job.head_dim);
    TM_UNROLL for (int r = 0; r < N; r++) {
      const F weight = set1(weights[r * SPLIT + p]);
      TM_UNROLL for (int i = 0; i < W; i++) sums[r][i] = fma(weight, part[i], sums[r][i]);
    }
  }
  TM_UNROLL for (int r = 0; r < N; r++)
    TM_UNROLL for (int i = 0; i < W; i++) store(out + r * width + from + 16 * i, sums[r][i]);
}

// The same for bfloat16, two positions at a time; behind an odd last one the weight is zero.
template <int N, int W, bool WHOLE>
void weigh_pairs(const Attend& job, const uint8_t* const* values, int64_t at, const uint16_t* weights, int count, int from,
                 float* out) {
  const int width = (job.head_dim + 15) / 16 * 16;
  F sums[N][W];
  TM_UNROLL for (int r = 0; r < N; r++)
    TM_UNROLL for (int i = 0; i < W; i++) sums[r][i] = load(out + r * width + from + 16 * i);
  for (int p = 0; p < count; p += 2) {
    const uint16_t *a = (const uint16_t*)(values[p] + at) + from, *b = (const uint16_t*)(values[p + 1] + at) + from;
    Both part[W];
    TM_UNROLL for (int i = 0; i < W; i++) part[i] = both<WHOLE>(a + 16 * i, b + 16 * i, job.head_dim - from);
    TM_UNROLL for (int r = 0; r < N; r++)
      TM_UNROLL for (int i = 0; i < W; i++) sums[r][i] = dot_both(sums[r][i], part[i], weights + r * 2 * SPLIT + p);
  }
  TM_UNROLL for (int r = 0; r < N; r++)
    TM_UNROLL for (int i = 0; i < W; i++) store(out + r * width + from + 16 * i, sums[r][i]);
}

template <int N, int FORM>
void weigh_all(const Attend& job, const uint8_t* const* values, int64_t at, const float* weights, int count, float* out) {
  int from = 0;
  if constexpr (FORM == AS_BFLOAT16) {
    const uint16_t* pairs = (const uint16_t*)weights;
    for (; from + 64 <= job.head_dim; from += 64) weigh_pairs<N, 4, true>(job, values, at, pairs, count, from, out);
    for (; from + 16 <= job.head_dim; from += 16) weigh_pairs<N, 1, true>(job, values, at, pairs, count, from, out);
    if (from < job.head_dim) weigh_pairs<N, 1, false>(job, values, at, pairs, count, from, out);
  } else {
    for (; from + 64 <= job.head_dim; from += 64) weigh<N, 4, FORM, true>(job, values, at, weights, count, from, out);
    for (; from + 16 <= job.head_dim; from += 16) weigh<N, 1, FORM, true>(job, values, at, weights, count, from, out);
    if (from < job.head_dim) weigh<N, 1, FORM, false>(job, values, at, weights, count, from, out);
  }
}

// Exponentials of one row's scores, zero where it may not look; notes the largest and the total. For values in bfloat16 they are
// that too, from the beginning of the row on.
template <int FORM>
void soften(const Attend& job, int row, float* scores, int count) {
  if (job.softcap > 0) softcap(scores, count, job.softcap);
  const int first = (int)(job.first[row % job.num_rows] - job.begin), last = (int)(job.last[row % job.num_rows] - job.begin);
  F most = set1(-INFINITY), total = set1(0);
  for (int p = 0; p < count; p += 16) {
    const F seen = within(load(scores + p), first - p, last - p, -INFINITY);
    store(scores + p, seen), most = max(most, seen);
  }
  const float best = largest(most);
  job.best[row] = best;
  for (int p = 0; p < count; p += 16) {
    F share = within(exp(sub(load(scores + p), set1(best))), first - p, last - p, 0);
    if (FORM == AS_BFLOAT16) {
      uint16_t* narrow = (uint16_t*)scores + p;
      to_bfloat(narrow, share), share = bfloat(narrow);
    } else {
      store(scores + p, share);
    }
    total = add(total, share);
  }
  job.total[row] = sum(total);  // 0 where it sees nothing here
}

int64_t align(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Room that attend needs, cut up. Keys in bytes become bfloat16, which holds them exactly.
struct Room {
  uint8_t* queries;   // [heads * rows] of query_bytes
  float* scores;      // [heads * rows][SPLIT]
  uint32_t* keys;     // [words / 4][4][16]
  uint32_t* widened;  // [16] keys of words: those in bytes, and those that are no multiple of four words
  int64_t query_bytes;
};

Room cut(const Attend& job) {
  uint8_t* at = job.scratch;
  Room room;
  const int64_t rows = (int64_t)job.num_heads * job.num_rows;
  room.query_bytes = align(4 * ((int64_t)job.head_dim + 16));
  room.scores = (float*)at, at += rows * SPLIT * 4;
  room.queries = at, at += rows * room.query_bytes;
  room.keys = (uint32_t*)at, at += 16 * 4 * ((int64_t)job.head_dim + 4);
  room.widened = (uint32_t*)at;
  return room;
}

int64_t slot_of(const Attend& job, int64_t position) { return job.base >= 0 ? job.base + position : job.slots[position]; }

constexpr int bytes_of(int form) { return form == AS_FLOAT32 ? 4 : form == AS_BFLOAT16 ? 2 : 1; }

// Where the job's rows begin; behind the last they are the last one's, up to a multiple of 16.
template <int FORM>
int find(const Attend& job, const void* cache, const uint8_t** rows) {
  const int64_t head = bytes_of(FORM) * (int64_t)job.head_dim, count = job.end - job.begin;
  const uint8_t* first = (const uint8_t*)cache + job.head * head;
  int p = 0;
  for (; p < count; p++) rows[p] = first + slot_of(job, job.begin + p) * job.num_kv_heads * head;
  for (; p % 16; p++) rows[p] = rows[p - 1];
  return (int)count;
}

// A key as words: bytes become bfloat16, a key that is no multiple of 16 bytes gets zeros behind it.
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
  if (job.head_dim * bytes_of(FORM) % 16) {
    memset(room + words - 4, 0, 16);
    memcpy(room, key, (size_t)(job.head_dim * bytes_of(FORM)));
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

// Scores of one head's rows against the 16 keys from `from` on.
template <int FORM>
void score_block(const Attend& job, const Room& room, int head, int from, const uint8_t* const* rows) {
  constexpr bool wide = FORM == AS_FLOAT32;
  const int words = ((wide ? job.head_dim : (job.head_dim + 1) / 2) + 3) / 4 * 4;
  const int64_t at = head * bytes_of(FORM) * (int64_t)job.head_dim;
  const uint32_t* keys[16];
  for (int i = 0; i < 16; i++) keys[i] = words_of<FORM>(job, rows[from + i] + at, words, room.widened + i * ((words + 7) / 8 * 8));
  lay_out(keys, words, room.keys);
  const int first = head * job.num_rows;
  const uint8_t* q = room.queries + first * room.query_bytes;
  float* out = room.scores + (int64_t)first * SPLIT + from;
  int r = 0;
#define TM_ROWS(N) score<N, wide>(job, q + r * room.query_bytes, room.query_bytes, room.keys, words, out + (int64_t)r * SPLIT)
  for (; r + 4 <= job.num_rows; r += 4) TM_ROWS(4);
  if (job.num_rows - r == 3) TM_ROWS(3);
  if (job.num_rows - r == 2) TM_ROWS(2);
  if (job.num_rows - r == 1) TM_ROWS(1);
#undef TM_ROWS
  if (FORM != AS_INT8) return;
  alignas(64) float scales[16] = {};
  for (int i = 0; i < 16 && job.begin + from + i < job.end; i++)
    scales[i] = job.k_scales[slot_of(job, job.begin + from + i) * job.num_kv_heads + job.head + head];
  for (r = 0; r < job.num_rows; r++) store(out + (int64_t)r * SPLIT, mul(load(out + (int64_t)r * SPLIT), load(scales)));
}

template <int FORM>
void weigh_block(const Attend& job, const Room& room, int head, int from, int count, const uint8_t* const* rows) {
  const int64_t at = head * bytes_of(FORM) * (int64_t)job.head_dim;
  const int first = head * job.num_rows, width = (job.head_dim + 15) / 16 * 16;
  float* weights = room.scores + (int64_t)first * SPLIT + (FORM == AS_BFLOAT16 ? from / 2 : from);
  float* out = job.values + (int64_t)first * width;
  if (FORM == AS_INT8)
    for (int i = 0; i < count; i++) {
      const float scale = job.v_scales[slot_of(job, job.begin + from + i) * job.num_kv_heads + job.head + head];
      for (int r = 0; r < job.num_rows; r++) weights[(int64_t)r * SPLIT + i] *= scale;
    }
  int r = 0;
#define TM_ROWS(N) weigh_all<N, FORM>(job, rows + from, at, weights + (int64_t)r * SPLIT, count, out + (int64_t)r * width)
  for (; r + 4 <= job.num_rows; r += 4) TM_ROWS(4);
  if (job.num_rows - r == 3) TM_ROWS(3);
  if (job.num_rows - r == 2) TM_ROWS(2);
  if (job.num_rows - r == 1) TM_ROWS(1);
#undef TM_ROWS
}

// Rows [from, from + 16) of all the job's heads, from where they are into the second cache (2) or the first (3).
template <int HINT> TM void fetch_rows(const uint8_t* const* rows, int from, int count, int64_t bytes) {
  for (int p = from; p < from + 16 && p < count; p++)
    for (int64_t at = 0; at < bytes; at += 64) TM_FETCH(rows[p] + at, HINT);
}

// What the next two blocks of 16 need: keys and values one after the other, since two streams at once are slower than each.
TM void fetch_ahead(const uint8_t* const* rows, int from, int count, int64_t bytes) {
  fetch_rows<2>(rows, from + 32, count, bytes), fetch_rows<3>(rows, from + 16, count, bytes);
}

template <int FORM>
void attend_in(const Attend& job) {
  const uint8_t *keys[SPLIT], *values[SPLIT];
  const int count = find<FORM>(job, job.k, keys), width = (job.head_dim + 15) / 16 * 16;
  find<FORM>(job, job.v, values);
  const Room room = cut(job);
  narrow<FORM>(job, room);
  const int64_t bytes = bytes_of(FORM) * (int64_t)job.head_dim * job.num_heads;
  fetch_rows<2>(keys, 0, count, bytes), fetch_rows<2>(keys, 16, count, bytes);
  for (int from = 0; from < count; from += 16) {
    fetch_ahead(keys, from, count, bytes);
    if (from + 16 >= count) fetch_rows<2>(values, 0, count, bytes), fetch_rows<2>(values, 16, count, bytes);
    for (int head = 0; head < job.num_heads; head++) score_block<FORM>(job, room, head, from, keys);
  }
  for (int r = 0; r < job.num_heads * job.num_rows; r++)
    soften<FORM>(job, r, room.scores + (int64_t)r * SPLIT, count);
  memset(job.values, 0, sizeof(float) * (size_t)(job.num_heads * job.num_rows * width));
  const int step = job.num_heads > 1 ? 16 : SPLIT;  // one head's values are near enough
  for (int from = 0; from < count; from += step) {
    for (int at = from; at < from + step; at += 16) fetch_ahead(values, at, count, bytes);
    for (int head = 0; head < job.num_heads; head++)
      weigh_block<FORM>(job, room, head, from, count - from < step ? count - from : step, values);
  }
}

}  // namespace

#include "attend_matrix.h"

namespace {

void attend(const Attend& job) {
#if defined(TM_AMX)
  if (job.cache_form == AS_BFLOAT16 && job.head_dim % 32 == 0) return attend_by_matrix(job);
#endif
  if (job.cache_form == AS_FLOAT32)
    attend_in<AS_FLOAT32>(job);
  else if (job.cache_form == AS_BFLOAT16)
    attend_in<AS_BFLOAT16>(job);
  else
    attend_in<AS_INT8>(job);
}

}  // namespace
