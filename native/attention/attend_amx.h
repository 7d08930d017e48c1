// Attention over a cache in bfloat16 by the matrix unit (AMX). Included by attend.h, after the code that the two share.
//
// Scores lie as [positions][lanes], where the lanes are the queries of all heads of the job, head by head. Keys are thus read
// as they lie in the cache, and the maximum and the sum of a query need no other lanes. A tile of 16 lanes may hold queries of
// several heads: the keys of each head are multiplied by a copy of the tile where the lanes of the other heads are zero.
#pragma once
#include "products/products_amx.h"

#if defined(TM_AMX)

namespace {

constexpr int LANES = 16, WORDS = 16, TILE_BYTES = 1024;  // a tile: 16 rows of 16 words, a word being two bfloat16

// Transposes 16 x 16 words.
void transpose(const uint32_t* in, uint32_t* out) {
  __m512i a[16], b[16];
  TM_UNROLL for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_si512(in + 16 * i);
  TM_UNROLL for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]), b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  TM_UNROLL for (int i = 0; i < 16; i += 4)
    TM_UNROLL for (int j = 0; j < 2; j++) {
      a[i + 2 * j] = _mm512_unpacklo_epi64(b[i + j], b[i + j + 2]), a[i + 2 * j + 1] = _mm512_unpackhi_epi64(b[i + j], b[i + j + 2]);
    }
  TM_UNROLL for (int j = 0; j < 4; j++) {
    const __m512i low = _mm512_shuffle_i32x4(a[j], a[4 + j], 0x88), high = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0x88);
    const __m512i low1 = _mm512_shuffle_i32x4(a[j], a[4 + j], 0xdd), high1 = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0xdd);
    _mm512_storeu_si512(out + 16 * j, _mm512_shuffle_i32x4(low, high, 0x88));
    _mm512_storeu_si512(out + 16 * (8 + j), _mm512_shuffle_i32x4(low, high, 0xdd));
    _mm512_storeu_si512(out + 16 * (4 + j), _mm512_shuffle_i32x4(low1, high1, 0x88));
    _mm512_storeu_si512(out + 16 * (12 + j), _mm512_shuffle_i32x4(low1, high1, 0xdd));
  }
}

// The scratch memory of a job, divided.
struct AmxScratch {
  int lanes, tiles, words;  // lanes are padded to whole tiles; words: of a key
  float* scores;            // [SPLIT][lanes]
  uint32_t* queries;        // tiles of a head [words / 16][16 words][16 lanes], for each tile of lanes with queries of the head
  uint32_t* weights;        // [lanes / 16][SPLIT / 32][16 lanes][16 pairs of positions]
  uint32_t* values;         // of one head [SPLIT / 32][4 tiles][16 pairs of positions][16 entries]
  uint32_t* tile16;         // 16 x 16 words, to be transposed
  uint8_t* keys;            // keys copied one behind the other
};

AmxScratch divide_amx_scratch(const AttentionJob& job) {
  AmxScratch f;
  const int rows = job.num_heads * job.num_rows;
  f.lanes = (rows + LANES - 1) / LANES * LANES, f.tiles = f.lanes / LANES, f.words = job.head_dim / 2;
  uint8_t* at = job.scratch;
  f.scores = (float*)at, at += (int64_t)SPLIT * f.lanes * 4;
  f.weights = (uint32_t*)at, at += (int64_t)SPLIT * f.lanes * 2;
  f.values = (uint32_t*)at, at += SPLIT * 64 * 2;
  f.tile16 = (uint32_t*)at, at += TILE_BYTES;
  f.keys = at, at += 32 * (int64_t)job.head_dim;
  f.queries = (uint32_t*)at;
  return f;
}

// The first and the last tile of lanes that hold queries of a head.
TM_INLINE int first_tile(const AttentionJob& job, int head) { return head * job.num_rows / LANES; }
TM_INLINE int last_tile(const AttentionJob& job, int head) { return ((head + 1) * job.num_rows - 1) / LANES; }

// The lanes of a tile that hold queries of a head.
struct LaneRange {
  int begin, end;
};
TM_INLINE LaneRange lanes_of(const AttentionJob& job, int head, int tile) {
  const int begin = head * job.num_rows - tile * LANES, end = begin + job.num_rows;
  return {begin > 0 ? begin : 0, end < LANES ? end : LANES};
}

// The place of a head's queries for a tile of lanes. Two heads have at most one tile in common, so that each pair has its own
// head + tile.
TM_INLINE uint32_t* queries_at(const AmxScratch& f, int head, int tile) {
  return f.queries + (int64_t)(head + tile) * f.words * LANES;
}

void store_queries(const AttentionJob& job, const AmxScratch& f) {
  for (int head = 0; head < job.num_heads; head++)
    for (int tile = first_tile(job, head); tile <= last_tile(job, head); tile++)
      for (int word = 0; word < f.words; word += WORDS) {
        const LaneRange lanes = lanes_of(job, head, tile);
        memset(f.tile16, 0, TILE_BYTES);
        for (int i = lanes.begin; i < lanes.end; i++) {
          const float* q = job.q[tile * LANES + i] + 2 * word;
          uint16_t* to = (uint16_t*)(f.tile16 + i * WORDS);
          to_bfloat(to, load(q)), to_bfloat(to + 16, load(q + 16));
        }
        transpose(f.tile16, queries_at(f, head, tile) + word * LANES);
      }
}

// Scores of the keys [from, from + 16) against the tiles of lanes [first, first + TILES).
template <int TILES>
void score_tiles(const AttentionJob& job, const AmxScratch& f, int first, int from, const uint8_t* const* rows) {
  const int64_t row = 2 * (int64_t)job.head_dim * job.num_kv_heads;
  bool contiguous = true;
  for (int i = 1; i < 16; i++) contiguous &= rows[from + i] - rows[from + i - 1] == row;
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int head = first * LANES / job.num_rows; head < job.num_heads && first_tile(job, head) < first + TILES; head++) {
    const int64_t at = 2 * (int64_t)job.head_dim * head;
    const int low = first_tile(job, head) - first, high = last_tile(job, head) - first;
    const uint8_t* keys = rows[from] + at;
    if (!contiguous)
      for (int i = 0; i < 16; i++) memcpy(f.keys + 2 * i * job.head_dim, rows[from + i] + at, 2 * (size_t)job.head_dim);
    const int64_t stride = contiguous ? row : 2 * job.head_dim;
    if (!contiguous) keys = f.keys;
    compiler_barrier();
    for (int word = 0; word < f.words; word += WORDS) {
      const uint32_t* queries = queries_at(f, head, first) + word * LANES;
      const int64_t next = (int64_t)f.words * LANES;
      _tile_loadd(0, keys + 4 * word, stride);
      if (low <= 0 && high >= 0) {
        _tile_loadd(3, queries, 64);
        _tile_dpbf16ps(4, 0, 3);
      }
      if (TILES > 1 && low <= 1 && high >= 1) {
        _tile_loadd(3, queries + next, 64);
        _tile_dpbf16ps(5, 0, 3);
      }
      if (TILES > 2 && low <= 2 && high >= 2) {
        _tile_loadd(3, queries + 2 * next, 64);
        _tile_dpbf16ps(6, 0, 3);
      }
      if (TILES > 3 && low <= 3 && high >= 3) {
        _tile_loadd(3, queries + 3 * next, 64);
        _tile_dpbf16ps(7, 0, 3);
      }
    }
  }
  float* out = f.scores + (int64_t)from * f.lanes + first * LANES;
  _tile_stored(4, out, 4 * f.lanes);
  if (TILES > 1) _tile_stored(5, out + LANES, 4 * f.lanes);
  if (TILES > 2) _tile_stored(6, out + 2 * LANES, 4 * f.lanes);
  if (TILES > 3) _tile_stored(7, out + 3 * LANES, 4 * f.lanes);
}

void score_all_tiles(const AttentionJob& job, const AmxScratch& f, int from, const uint8_t* const* rows) {
  int tile = 0;
  for (; tile + 4 <= f.tiles; tile += 4) score_tiles<4>(job, f, tile, from, rows);
  if (f.tiles - tile == 3) score_tiles<3>(job, f, tile, from, rows);
  if (f.tiles - tile == 2) score_tiles<2>(job, f, tile, from, rows);
  if (f.tiles - tile == 1) score_tiles<1>(job, f, tile, from, rows);
}

// Biases of the scores of 16 lanes and of the positions [from, from + 16), as [positions][lanes], in f.tile16.
void gather_biases(const AttentionJob& job, const AmxScratch& f, int tile, int from) {
  const int rows = job.num_heads * job.num_rows;
  memset(f.tile16, 0, TILE_BYTES);
  for (int i = 0; i < LANES && tile * LANES + i < rows; i++)
    memcpy(f.tile16 + i * WORDS, job.biases[tile * LANES + i] + from, 4 * WORDS);
  transpose(f.tile16, f.tile16);
}

// Weights of 16 lanes: the exponentials of their scores, zero where a lane does not attend, as bfloat16 in pairs of positions.
// Stores the maximum and the sum of each lane.
void softmax_tile(const AttentionJob& job, const AmxScratch& f, int tile, int count) {
  alignas(64) int32_t begins[LANES] = {}, ends[LANES] = {};
  const int rows = job.num_heads * job.num_rows;
  int all_from = 0, end = count;  // all lanes attend to [all_from, end)
  for (int i = 0; i < LANES; i++) {
    const int lane = tile * LANES + i;
    if (lane < rows) {
      begins[i] = (int)(job.visible_begin[lane % job.num_rows] - job.begin);
      ends[i] = (int)(job.visible_end[lane % job.num_rows] - job.begin);
      all_from = begins[i] > all_from ? begins[i] : all_from, end = ends[i] < end ? ends[i] : end;
    }
  }
  const __m512i first = _mm512_load_si512(begins), last = _mm512_load_si512(ends);
  const auto visible = [&](int p) -> __mmask16 {
    if (p >= all_from && p < end) return 0xffff;
    const __m512i at = _mm512_set1_epi32(p);
    return p >= count ? 0 : _mm512_cmple_epi32_mask(first, at) & _mm512_cmplt_epi32_mask(at, last);
  };
  float* scores = f.scores + tile * LANES;
  const F scale = set1(job.scale);
  F max_lanes[2] = {set1(-INFINITY), set1(-INFINITY)};
  for (int p = 0; p < count; p++) {
    float* at = scores + (int64_t)p * f.lanes;
    F score = mul(load(at), scale);
    if (job.softcap > 0) score = capped(score, job.softcap);
    if (job.biases && p % 16 == 0) gather_biases(job, f, tile, p);
    if (job.biases) score = add(score, load((const float*)f.tile16 + p % 16 * LANES));
    store(at, score);
    max_lanes[p % 2].v = _mm512_mask_max_ps(max_lanes[p % 2].v, visible(p), max_lanes[p % 2].v, score.v);
  }
  const F max_score = max(max_lanes[0], max_lanes[1]);
  F exp_sum[2] = {set1(0), set1(0)};
  for (int from = 0; from < count; from += 32) {
    for (int p = from; p < from + 32; p += 2) {
      __m512 weight[2];
      TM_UNROLL for (int i = 0; i < 2; i++) {
        const F shifted = sub(load(scores + (int64_t)(p + i) * f.lanes), max_score);
        weight[i] = _mm512_maskz_mov_ps(visible(p + i), exp(shifted).v);
      }
      const __m512i pair = interleaved((__m512i)_mm512_cvtne2ps_pbh(weight[1], weight[0]));
      exp_sum[0] = add(exp_sum[0], {_mm512_castsi512_ps(_mm512_slli_epi32(pair, 16))});
      exp_sum[1] = add(exp_sum[1], {_mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32((int)0xffff0000)))});
      _mm512_storeu_si512(f.tile16 + (p - from) / 2 * LANES, pair);
    }
    transpose(f.tile16, f.weights + ((int64_t)tile * (SPLIT / 32) + from / 32) * 256);
  }
  alignas(64) float max_scores[LANES], exp_sums[LANES];
  store(max_scores, max_score), store(exp_sums, add(exp_sum[0], exp_sum[1]));
  for (int i = 0; i < LANES && tile * LANES + i < rows; i++)
    job.max_score[tile * LANES + i] = max_scores[i], job.exp_sum[tile * LANES + i] = exp_sums[i];
}

// Interleaves the V rows of one head, entries [d, d + 16 * TILES), two positions at a time for 32 positions. Behind the last
// position the last row is repeated; its weight is zero.
template <int TILES>
uint32_t* pair_values(const AttentionJob& job, int head, int d, int from, int count, const uint8_t* const* rows, uint32_t* to) {
  const int64_t at = 2 * ((int64_t)job.value_dim * head + d);
  for (int p = from; p < from + 32; p += 2, to += WORDS) {
    const uint16_t* a = (const uint16_t*)(rows[p < count ? p : count - 1] + at);
    const uint16_t* b = (const uint16_t*)(rows[p + 1 < count ? p + 1 : count - 1] + at);
    TM_UNROLL for (int t = 0; t < TILES; t++) _mm512_storeu_si512(to + 256 * t, load_full_pair(a + 16 * t, b + 16 * t));
  }
  return to + 256 * (TILES - 1);
}

// Multiplies the weights of a head's lanes in a tile by the entries [d, d + 16 * TILES) of the V rows. Where PAIRED, f.values
// has the interleaved rows; otherwise 32 positions are interleaved at a time and stay in the first-level cache.
template <int TILES, bool PAIRED>
void add_value_tiles(const AttentionJob& job, const AmxScratch& f, int head, int tile, int d, int count,
                     const uint8_t* const* rows) {
  const uint32_t* weights = f.weights + (int64_t)tile * (SPLIT / 32) * 256;
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int from = 0; from < count; from += 32, weights += 256) {
    uint32_t* values = f.values + from / 32 * TILES * 256;
    if (!PAIRED) pair_values<TILES>(job, head, d, from, count, rows, values = f.values + from / 32 % 2 * TILES * 256);
    compiler_barrier();
    _tile_loadd(0, weights, 64);
    _tile_loadd(3, values, 64);
    _tile_dpbf16ps(4, 0, 3);
    _tile_loadd(3, values + 256, 64);
    _tile_dpbf16ps(5, 0, 3);
    if (TILES == 2) continue;
    _tile_loadd(3, values + 512, 64);
    _tile_dpbf16ps(6, 0, 3);
    _tile_loadd(3, values + 768, 64);
    _tile_dpbf16ps(7, 0, 3);
  }
  alignas(64) float out[TILES][256];
  _tile_stored(4, out[0], 64);
  _tile_stored(5, out[1], 64);
  if (TILES == 4) {
    _tile_stored(6, out[TILES - 2], 64);
    _tile_stored(7, out[TILES - 1], 64);
  }
  const LaneRange lanes = lanes_of(job, head, tile);
  for (int i = lanes.begin; i < lanes.end; i++)
    for (int t = 0; t < TILES; t++)
      store(job.value_sum + (int64_t)(tile * LANES + i) * job.value_dim + d + 16 * t, load(out[t] + 16 * i));
}

template <int TILES>
void add_head_values(const AttentionJob& job, const AmxScratch& f, int head, int d, int count, const uint8_t* const* rows) {
  const int first = first_tile(job, head), last = last_tile(job, head);
  if (first == last) return add_value_tiles<TILES, false>(job, f, head, first, d, count, rows);
  uint32_t* to = f.values;
  for (int from = 0; from < count; from += 32) to = pair_values<TILES>(job, head, d, from, count, rows, to);
  for (int tile = first; tile <= last; tile++) add_value_tiles<TILES, true>(job, f, head, tile, d, count, rows);
}

// A job with head_dim and value_dim multiples of 32. Rows are prefetched 48 positions ahead, into the second-level cache only.
void attend_amx(const AttentionJob& job) {
  const uint8_t *keys[SPLIT], *values[SPLIT];
  const int count = locate_rows<AS_BFLOAT16>(job, job.k, job.head_dim, keys);
  locate_rows<AS_BFLOAT16>(job, job.v, job.value_dim, values);
  const AmxScratch f = divide_amx_scratch(job);
  store_queries(job, f);
  const int64_t bytes = 2 * (int64_t)job.head_dim * job.num_heads, value_bytes = 2 * (int64_t)job.value_dim * job.num_heads;
  for (int from = 0; from < 48; from += 16) prefetch_rows<2>(keys, from, count, 0, bytes);
  for (int from = 0; from < count; from += 16) {
    prefetch_rows<2>(keys, from + 48, count, 0, bytes);
    score_all_tiles(job, f, from, keys);
  }
  for (int from = 0; from < count; from += 16) prefetch_rows<2>(values, from, count, 0, value_bytes);
  for (int tile = 0; tile < f.tiles; tile++) softmax_tile(job, f, tile, count);
  for (int head = 0; head < job.num_heads; head++) {
    int d = 0;
    for (; d + 64 <= job.value_dim; d += 64) add_head_values<4>(job, f, head, d, count, values);
    if (d < job.value_dim) add_head_values<2>(job, f, head, d, count, values);
  }
}

}  // namespace

#endif
