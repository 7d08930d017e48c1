// Attention of the queries of one job over the K and V rows of one split. Included by kernels.cpp, once per instruction set.
//
// A cached row holds all kv heads. Where a job has all of them, K and V rows are read in the order of memory, 16 positions at a
// time, and prefetched two blocks ahead. Reading head after head took twice as long.
#pragma once
#include "kernels/in_rows.h"
#include "kernels/rows.h"
#include "vector/attention.h"

namespace {

// Interleaves 16 keys of one head, four words of each side by side: [words / 4][4][16], where lane 4 j + i of vector g is word
// i of key 4 j + g. A word is one float or two bfloat16. CONVERTS: the keys are float16, which become floats on the way, or int8,
// which become bfloat16; `words` is a multiple of 16 then. PLANES: words are two bfloat16, or two int8, and their odd entries are
// stored as floats, then behind all of them their even ones; see score.
template <int FORMAT, bool CONVERTS, bool PLANES> void interleave_keys(const uint8_t* const* keys, int words, uint32_t* out) {
  const auto put = [&](int at, Bytes64 four) {
    if (!PLANES) return store_bytes64((uint8_t*)(out + 16 * at), four);
    store_bytes64((uint8_t*)(out + 16 * at), odd_entries(four));
    store_bytes64((uint8_t*)(out + 16 * (words + at)), even_entries(four));
  };
  int w = 0;
#if TM_AVX512
  const auto load_words = [&](int key) {
    if constexpr (CONVERTS && FORMAT == AS_FLOAT16) return _mm512_castps_si512(half((const uint16_t*)keys[key] + w).v);
#if defined(__AVX512BF16__)
    if constexpr (CONVERTS && FORMAT == AS_INT8) return bfloats_of_codes((const int8_t*)keys[key] + 2 * w);
#endif
    return _mm512_loadu_si512(keys[key] + 4 * w);
  };
  for (; (CONVERTS || FORMAT != AS_INT8) && w + 16 <= words; w += 16)
    for (int g = 0; g < 4; g++) {
      const __m512i a = load_words(g), b = load_words(4 + g), c = load_words(8 + g), d = load_words(12 + g);
      const __m512i ab = _mm512_shuffle_i32x4(a, b, 0x88), cd = _mm512_shuffle_i32x4(c, d, 0x88);
      const __m512i ab1 = _mm512_shuffle_i32x4(a, b, 0xdd), cd1 = _mm512_shuffle_i32x4(c, d, 0xdd);
      put(w + g, _mm512_shuffle_i32x4(ab, cd, 0x88)), put(w + 4 + g, _mm512_shuffle_i32x4(ab1, cd1, 0x88));
      put(w + 8 + g, _mm512_shuffle_i32x4(ab, cd, 0xdd)), put(w + 12 + g, _mm512_shuffle_i32x4(ab1, cd1, 0xdd));
    }
#endif
  for (; w < words; w += 4)
    for (int g = 0; g < 4; g++) {
      if constexpr (FORMAT == AS_INT8 && PLANES) {
        const CodePairs four = four_codes(keys[g] + 2 * w, keys[4 + g] + 2 * w, keys[8 + g] + 2 * w, keys[12 + g] + 2 * w);
        store((float*)(out + 16 * (w + g)), odd_codes(four)), store((float*)(out + 16 * (words + w + g)), even_codes(four));
      } else {
        put(w + g, four_words(keys[g] + 4 * w, keys[4 + g] + 4 * w, keys[8 + g] + 4 * w, keys[12 + g] + 4 * w));
      }
    }
}

// Scores of N queries against 16 interleaved keys. Each of four consecutive words has a sum of its own; the four are added at
// the end. PLANES: how many floats a word has, one plane behind the other, or 0 where words are multiplied as pairs of bfloat16.
// plane: words from one plane of a query to the next.
template <int N, int PLANES>
void score(const AttentionJob& job, const uint8_t* q, int64_t bytes, int plane, const uint32_t* keys, int words, float* out) {
  for (int part = 0; part < PARTS; part++) {
    Part sums[N][4];
    TM_UNROLL for (int r = 0; r < N; r++)
      TM_UNROLL for (int g = 0; g < 4; g++) sums[r][g] = zero_part();
    for (int w = 0; w < words; w += 4)
      TM_UNROLL for (int p = 0; p < (PLANES ? PLANES : 1); p++) {
        Quad x[N];
        TM_UNROLL for (int r = 0; r < N; r++) x[r] = broadcast_quad(q + r * bytes + 4 * (w + p * plane));
        TM_UNROLL for (int g = 0; g < 4; g++) {
          const uint32_t* four = keys + 16 * (w + g + p * words) + 16 / PARTS * part;
          TM_UNROLL for (int r = 0; r < N; r++) {
            if constexpr (PLANES > 0) sums[r][g] = fma_quad(sums[r][g], four, x[r]);
            else sums[r][g] = dot2_quad(sums[r][g], four, x[r]);
          }
        }
      }
    TM_UNROLL for (int r = 0; r < N; r++)
      store_scores(out + r * SPLIT + 16 / PARTS * part, sums[r][0], sums[r][1], sums[r][2], sums[r][3], job.scale);
  }
}

// Entries [from, from + 16) of a cached row of float32, float16 or bytes, as floats. Lanes behind head_dim are zero.
template <int FORMAT, bool FULL>
TM_INLINE F load_values(const uint8_t* row, int from, int head_dim) {
  if (!FULL) {
    alignas(64) uint8_t copy[64] = {};
    const int size = format_bytes(FORMAT);
    memcpy(copy, row + from * size, (size_t)((head_dim - from < 16 ? head_dim - from : 16) * size));
    return load_values<FORMAT, true>(copy, 0, 16);
  }
  if (FORMAT == AS_FLOAT32) return load((const float*)row + from);
  if (FORMAT == AS_FLOAT16) return half((const uint16_t*)row + from);
  return from_codes((const int8_t*)row + from);
}

// Adds the V rows of `count` positions, multiplied by the weights [N][SPLIT] of N queries, to `out`: W vectors of 16 entries at
// a time, position after position. `at` is the distance in bytes from the beginning of a cached row to the head.
template <int N, int W, int FORMAT, bool FULL>
void add_values(const AttentionJob& job, const uint8_t* const* values, int64_t at, const float* weights, int count, int from,
                float* out) {
  const int width = (job.value_dim + 15) / 16 * 16;
  F sums[N][W];
  TM_UNROLL for (int r = 0; r < N; r++)
    TM_UNROLL for (int i = 0; i < W; i++) sums[r][i] = load(out + r * width + from + 16 * i);
  for (int p = 0; p < count; p++) {
    F part[W];
    TM_UNROLL for (int i = 0; i < W; i++) part[i] = load_values<FORMAT, FULL>(values[p] + at, from + 16 * i, job.value_dim);
    TM_UNROLL for (int r = 0; r < N; r++) {
      const F weight = set1(weights[r * SPLIT + p]);
      TM_UNROLL for (int i = 0; i < W; i++) sums[r][i] = fma(weight, part[i], sums[r][i]);
    }
  }
  TM_UNROLL for (int r = 0; r < N; r++)
    TM_UNROLL for (int i = 0; i < W; i++) store(out + r * width + from + 16 * i, sums[r][i]);
}

// The same for V rows in bfloat16, two positions at a time. The weight behind an odd last position is zero. The weights of the next
// query are `next` further on.
template <int N, int W, bool FULL>
void add_value_pairs(const AttentionJob& job, const uint8_t* const* values, int64_t at, const PairWeight* weights, int64_t next,
                     int count, int from, float* out) {
  const int width = (job.value_dim + 15) / 16 * 16;
  F sums[N][W];
  TM_UNROLL for (int r = 0; r < N; r++)
    TM_UNROLL for (int i = 0; i < W; i++) sums[r][i] = load(out + r * width + from + 16 * i);
  for (int p = 0; p < count; p += 2) {
    const uint16_t *a = (const uint16_t*)(values[p] + at) + from, *b = (const uint16_t*)(values[p + 1] + at) + from;
    RowPair part[W];
    TM_UNROLL for (int i = 0; i < W; i++) part[i] = load_pair<FULL>(a + 16 * i, b + 16 * i, job.value_dim - from);
    TM_UNROLL for (int r = 0; r < N; r++)
      TM_UNROLL for (int i = 0; i < W; i++) sums[r][i] = dot_pair(sums[r][i], part[i], weights + r * next + p);
  }
  TM_UNROLL for (int r = 0; r < N; r++)
    TM_UNROLL for (int i = 0; i < W; i++) store(out + r * width + from + 16 * i, sums[r][i]);
}

template <int N, int FORMAT>
void add_all_values(const AttentionJob& job, const uint8_t* const* values, int64_t at, const float* weights, int count,
                    float* out) {
  constexpr int W = VALUE_VECTORS;
  int from = 0;
  if constexpr (FORMAT == AS_BFLOAT16) {
    const PairWeight* pairs = (const PairWeight*)weights;
    constexpr int64_t next = SPLIT * (int64_t)(sizeof(float) / sizeof(PairWeight));
    for (; from + 16 * W <= job.value_dim; from += 16 * W)
      add_value_pairs<N, W, true>(job, values, at, pairs, next, count, from, out);
    for (; from + 16 <= job.value_dim; from += 16) add_value_pairs<N, 1, true>(job, values, at, pairs, next, count, from, out);
    if (from < job.value_dim) add_value_pairs<N, 1, false>(job, values, at, pairs, next, count, from, out);
  } else {
    for (; from + 16 * W <= job.value_dim; from += 16 * W)
      add_values<N, W, FORMAT, true>(job, values, at, weights, count, from, out);
    for (; from + 16 <= job.value_dim; from += 16) add_values<N, 1, FORMAT, true>(job, values, at, weights, count, from, out);
    if (from < job.value_dim) add_values<N, 1, FORMAT, false>(job, values, at, weights, count, from, out);
  }
}

// Replaces the scores of one query by their exponentials, zero where the query does not attend, and stores their maximum and
// sum. For V rows in bfloat16 the weights are rounded to it, and lie one behind the other from the beginning of the row of scores.
template <int FORMAT>
void softmax(const AttentionJob& job, int row, float* scores, int count) {
  if (job.softcap > 0) softcap(scores, count, job.softcap);
  if (job.biases)
    for (int p = 0; p < count; p += 16) store(scores + p, add(load(scores + p), load(job.biases[row] + p)));
  const int visible_begin = (int)(job.visible_begin[row % job.num_rows] - job.begin);
  const int visible_end = (int)(job.visible_end[row % job.num_rows] - job.begin);
  const int whole = visible_begin <= 0 && visible_end >= count ? count / 16 * 16 : 0;  // positions before it are all visible
  F max_lanes = set1(-INFINITY), exp_sum = set1(0);
  for (int p = 0; p < whole; p += 16) max_lanes = max(max_lanes, load(scores + p));
  for (int p = whole; p < count; p += 16) {
    const F seen = mask_outside(load(scores + p), visible_begin - p, visible_end - p, -INFINITY);
    store(scores + p, seen), max_lanes = max(max_lanes, seen);
  }
  const float max_score = reduce_max(max_lanes);
  job.max_score[row] = max_score;
  for (int p = 0; p < count; p += 16) {
    F weight = exp(sub(load(scores + p), set1(max_score)));
    if (p >= whole) weight = mask_outside(weight, visible_begin - p, visible_end - p, 0);
    if (FORMAT == AS_BFLOAT16) {
      weight = store_pair_weights((PairWeight*)scores + p, weight);
    } else {
      store(scores + p, weight);
    }
    exp_sum = add(exp_sum, weight);
  }
  job.exp_sum[row] = reduce_sum(exp_sum);  // 0 where nothing of the split is visible
}

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Keys are multiplied as floats, or in pairs of bfloat16, or as the pairs' odd and even entries; see score.
constexpr bool multiplied_as_floats(int format) { return format == AS_FLOAT32 || format == AS_FLOAT16; }
constexpr int planes_of(int format) { return multiplied_as_floats(format) ? 1 : MULTIPLIES_PAIRS ? 0 : 2; }
// Words from the odd entries of a query to its even ones.
int64_t plane_of(int head_dim) { return (head_dim + 15) / 16 * 8; }
// Whether interleave_keys converts the rows of the cache itself; otherwise key_words converts them before.
bool converts_at_once(int format, int head_dim) {
#if TM_AVX512
  return (format == AS_FLOAT16 && head_dim % 16 == 0) || (format == AS_INT8 && MULTIPLIES_PAIRS && head_dim % 32 == 0);
#else
  return (void)format, (void)head_dim, false;
#endif
}

// The scratch memory of a job, divided. Keys in int8 become bfloat16 or float32, which hold them exactly.
struct JobScratch {
  uint8_t* queries;   // [heads * rows], query_bytes each
  float* scores;      // [heads * rows][SPLIT]
  uint32_t* keys;     // [words / 4][4][16], twice where there are two planes
  uint32_t* widened;  // [16][words]: keys that are converted from int8 or float16, or padded to a multiple of four words
  float *k_scales, *v_scales;  // of AS_INT8 [heads][SPLIT]
  int64_t query_bytes;
};

JobScratch divide_scratch(const AttentionJob& job) {
  uint8_t* at = job.scratch;
  JobScratch scratch;
  const int64_t rows = (int64_t)job.num_heads * job.num_rows;
  scratch.query_bytes = aligned(4 * ((int64_t)job.head_dim + 16));
  scratch.scores = (float*)at, at += rows * SPLIT * 4;
  scratch.queries = at, at += rows * scratch.query_bytes;
  scratch.keys = (uint32_t*)at, at += 16 * 4 * ((int64_t)job.head_dim + 8);
  scratch.widened = (uint32_t*)at, at += 16 * 4 * ((int64_t)job.head_dim + 16);
  scratch.k_scales = (float*)at, scratch.v_scales = scratch.k_scales + job.num_heads * SPLIT;
  return scratch;
}

int64_t slot_of(const AttentionJob& job, int64_t position) { return job.base >= 0 ? job.base + position : job.slots[position]; }

// Sets the positions to which at least one query of the job attends.
void find_seen(AttentionJob& job) {
  int64_t begin = job.end, end = job.begin;
  for (int r = 0; r < job.num_rows; r++) {
    begin = job.visible_begin[r] < begin ? job.visible_begin[r] : begin;
    end = job.visible_end[r] > end ? job.visible_end[r] : end;
  }
  begin = begin > job.begin ? begin : job.begin, end = end < job.end ? end : job.end;
  const bool some = begin < end;
  job.seen_begin = some ? begin : job.begin, job.seen_end = some ? end : job.end;
}

// Finds where the cached rows of the job begin. A row to which no query attends may hold anything, and 0 times NaN is not 0: the
// nearest row with a query stands in its place. Behind the last position the last row is repeated, up to a multiple of 16. dim:
// entries of a head.
template <int FORMAT>
int locate_rows(const AttentionJob& job, const void* cache, int dim, const uint8_t** rows) {
  const int64_t head = format_bytes(FORMAT) * (int64_t)dim, stride = job.num_kv_heads * head;
  const int count = (int)(job.end - job.begin), first = (int)(job.seen_begin - job.begin), end = (int)(job.seen_end - job.begin);
  const uint8_t* base = (const uint8_t*)cache + job.head * head;
  int p = first;
  if (job.base >= 0)
    for (base += (job.base + job.begin) * stride; p < end; p++) rows[p] = base + p * stride;
  else
    for (const int64_t* slots = job.slots + job.begin; p < end; p++) rows[p] = base + slots[p] * stride;
  for (; p < count || p % 16; p++) rows[p] = rows[p - 1];
  for (p = 0; p < first; p++) rows[p] = rows[first];
  return count;
}

// Gathers the scales of the job's cached rows, head by head. A row to which no query attends has the scale of the row in its place.
void gather_scales(const AttentionJob& job, const float* all, float* out) {
  const int count = (int)(job.end - job.begin);
  for (int p = 0; p < count; p++) {
    int64_t position = job.begin + p;
    position = position < job.seen_begin ? job.seen_begin : position < job.seen_end ? position : job.seen_end - 1;
    const float* scales = all + slot_of(job, position) * job.num_kv_heads + job.head;
    for (int head = 0; head < job.num_heads; head++) out[head * SPLIT + p] = scales[head];
  }
  for (int head = 0; head < job.num_heads; head++)
    for (int p = count; p % 16; p++) out[head * SPLIT + p] = 0;
}

// A key as words: int8 is converted to bfloat16, float16 to floats, unless they are converted while keys are interleaved; a key that
// does not fill its words is copied and padded with zeros.
template <int FORMAT>
const uint32_t* key_words(const AttentionJob& job, const uint8_t* key, int words, uint32_t* scratch) {
  if (FORMAT == AS_INT8 && planes_of(FORMAT) == 2) {
    if (job.head_dim % 8 == 0) return (const uint32_t*)key;
    memset(scratch, 0, (size_t)(2 * words)), memcpy(scratch, key, (size_t)job.head_dim);
    return scratch;
  }
  if (FORMAT == AS_INT8) {
    if (converts_at_once(FORMAT, job.head_dim)) return (const uint32_t*)key;
    uint16_t* bfloats = (uint16_t*)scratch;
    for (int d = 0; d < 2 * words; d += 16) {
      const F part = d + 16 <= job.head_dim ? from_codes((const int8_t*)key + d) : load_values<FORMAT, false>(key, d, job.head_dim);
      to_bfloat(bfloats + d, part);
    }
    return scratch;
  }
  if (converts_at_once(FORMAT, job.head_dim)) return (const uint32_t*)key;
  if (FORMAT == AS_FLOAT16) {
    for (int d = 0; d < job.head_dim; d += 16) {
      const bool full = d + 16 <= job.head_dim;
      store((float*)scratch + d, full ? load_values<FORMAT, true>(key, d, 16) : load_values<FORMAT, false>(key, d, job.head_dim));
    }
    return scratch;
  }
  if (job.head_dim * format_bytes(FORMAT) % 16) {
    memset(scratch + words - 4, 0, 16);
    memcpy(scratch, key, (size_t)(job.head_dim * format_bytes(FORMAT)));
    return scratch;
  }
  return (const uint32_t*)key;
}

// Converts the queries to the format in which the keys are multiplied.
template <int FORMAT>
void convert_queries(const AttentionJob& job, const JobScratch& scratch) {
  for (int r = 0; r < job.num_heads * job.num_rows; r++) {
    uint8_t* to = scratch.queries + r * scratch.query_bytes;
    for (int d = 0; d < job.head_dim; d += 16)  // padded with zeros
      if (multiplied_as_floats(FORMAT)) {
        store((float*)to + d, load(job.q[r] + d));
      } else if (planes_of(FORMAT) == 0) {
        to_bfloat((uint16_t*)to + d, load(job.q[r] + d));
      } else {
        uint16_t bfloats[16];
        float rounded[16], *odd = (float*)to + d / 2, *even = odd + plane_of(job.head_dim);
        to_bfloat(bfloats, load(job.q[r] + d)), store(rounded, bfloat(bfloats));
        for (int i = 0; i < 8; i++) odd[i] = rounded[2 * i + 1], even[i] = rounded[2 * i];
      }
  }
}

// Scores of one head's queries against the 16 keys from `from` on.
template <int FORMAT>
void score_keys(const AttentionJob& job, const JobScratch& scratch, int head, int from, const uint8_t* const* rows) {
  constexpr bool PLANES = planes_of(FORMAT) == 2;
  constexpr int STORED = PLANES ? FORMAT : AS_FLOAT32;  // the words that key_words gives
  const int words = ((multiplied_as_floats(FORMAT) ? job.head_dim : (job.head_dim + 1) / 2) + 3) / 4 * 4;
  const int64_t at = head * format_bytes(FORMAT) * (int64_t)job.head_dim;
  const uint8_t* keys[16];
  for (int i = 0; i < 16; i++)
    keys[i] = (const uint8_t*)key_words<FORMAT>(job, rows[from + i] + at, words, scratch.widened + i * ((words + 15) / 16 * 16));
  constexpr bool CAN_CONVERT = FORMAT == AS_FLOAT16 || (FORMAT == AS_INT8 && !PLANES);
  if (CAN_CONVERT && converts_at_once(FORMAT, job.head_dim)) interleave_keys<CAN_CONVERT ? FORMAT : STORED, CAN_CONVERT, PLANES>(keys, words, scratch.keys);
  else interleave_keys<STORED, false, PLANES>(keys, words, scratch.keys);
  const int first_row = head * job.num_rows, plane = (int)plane_of(job.head_dim);
  const uint8_t* q = scratch.queries + first_row * scratch.query_bytes;
  float* out = scratch.scores + (int64_t)first_row * SPLIT + from;
  in_rows<SCORE_ROWS>(job.num_rows, [&](auto n, int r) {
    score<n(), planes_of(FORMAT)>(job, q + r * scratch.query_bytes, scratch.query_bytes, plane, scratch.keys, words,
                                  out + (int64_t)r * SPLIT);
  });
  if (FORMAT != AS_INT8) return;
  const F scales = load(scratch.k_scales + head * SPLIT + from);
  for (int r = 0; r < job.num_rows; r++) store(out + (int64_t)r * SPLIT, mul(load(out + (int64_t)r * SPLIT), scales));
}

// Adds the V rows of the positions [from, from + count) to the results of one head's queries.
template <int FORMAT>
void add_block_values(const AttentionJob& job, const JobScratch& scratch, int head, int from, int count,
                      const uint8_t* const* rows) {
  const int64_t at = head * format_bytes(FORMAT) * (int64_t)job.value_dim;
  const int first_row = head * job.num_rows, width = (job.value_dim + 15) / 16 * 16;
  float* weights = scratch.scores + (int64_t)first_row * SPLIT + from * (FORMAT == AS_BFLOAT16 ? (int)sizeof(PairWeight) : 4) / 4;
  float* out = job.value_sum + (int64_t)first_row * width;
  if (FORMAT == AS_INT8)
    for (int r = 0; r < job.num_rows; r++)
      for (int i = 0; i < count; i += 16) {
        float* weight = weights + (int64_t)r * SPLIT + i;
        store(weight, mul(load(weight), load(scratch.v_scales + head * SPLIT + from + i)));
      }
  in_rows<4>(job.num_rows, [&](auto n, int r) {
    add_all_values<n(), FORMAT>(job, rows + from, at, weights + (int64_t)r * SPLIT, count, out + (int64_t)r * width);
  });
}

// Prefetches `bytes` of the rows [from, end), but for rows behind `count`, into the second-level cache (LEVEL 2) or the first (3).
template <int LEVEL> TM_INLINE void prefetch_rows(const uint8_t* const* rows, int from, int end, int count, int64_t bytes) {
  for (int p = from; p < end && p < count; p++)
    for (int64_t i = 0; i < bytes; i += 64) TM_PREFETCH(rows[p] + i, LEVEL);
}

// Prefetches the rows of the next two blocks of 16 positions. K rows come first and V rows later, because two streams at once are
// slower than one after the other. Each head prefetches some of the rows, whole: all rows at once would fill the queue of
// reads, in which the reads of the block itself then wait.
TM_INLINE void prefetch_ahead(const uint8_t* const* rows, int from, int count, int head, int heads, int64_t bytes) {
  const int first = 16 * head / heads, end = 16 * (head + 1) / heads;
  prefetch_rows<2>(rows, from + 32 + first, from + 32 + end, count, bytes);
  prefetch_rows<3>(rows, from + 16 + first, from + 16 + end, count, bytes);
}

// A job whose cache is in FORMAT.
template <int FORMAT>
void attend_by_rows(const AttentionJob& job) {
  const uint8_t *keys[SPLIT], *values[SPLIT];
  const int count = locate_rows<FORMAT>(job, job.k, job.head_dim, keys), width = (job.value_dim + 15) / 16 * 16;
  locate_rows<FORMAT>(job, job.v, job.value_dim, values);
  const JobScratch scratch = divide_scratch(job);
  convert_queries<FORMAT>(job, scratch);
  if (FORMAT == AS_INT8) gather_scales(job, job.k_scales, scratch.k_scales), gather_scales(job, job.v_scales, scratch.v_scales);
  const int64_t all = format_bytes(FORMAT) * (int64_t)job.head_dim * job.num_heads;
  const int64_t all_values = format_bytes(FORMAT) * (int64_t)job.value_dim * job.num_heads;
  prefetch_rows<2>(keys, 0, 32, count, all);
  for (int from = 0; from < count; from += 16)
    for (int head = 0; head < job.num_heads; head++) {
      prefetch_ahead(keys, from, count, head, job.num_heads, all);
      if (from + 16 >= count) prefetch_rows<2>(values, 32 * head / job.num_heads, 32 * (head + 1) / job.num_heads, count, all_values);
      score_keys<FORMAT>(job, scratch, head, from, keys);
    }
  for (int r = 0; r < job.num_heads * job.num_rows; r++)
    softmax<FORMAT>(job, r, scratch.scores + (int64_t)r * SPLIT, count);
  memset(job.value_sum, 0, sizeof(float) * (size_t)(job.num_heads * job.num_rows * width));
  const int step = job.num_heads > 1 ? 16 : SPLIT;  // the V rows of one head fit into the first-level cache
  for (int from = 0; from < count; from += step)
    for (int head = 0; head < job.num_heads; head++) {
      for (int at = from; at < from + step; at += 16) prefetch_ahead(values, at, count, head, job.num_heads, all_values);
      add_block_values<FORMAT>(job, scratch, head, from, count - from < step ? count - from : step, values);
    }
}

}  // namespace

#include "attention/attend_amx.h"

namespace {

void attend_together(const AttentionJob& job) {
#if defined(TM_AMX)
  if (job.cache_format == AS_BFLOAT16 && job.head_dim % 32 == 0 && job.value_dim % 32 == 0) return attend_amx(job);
#endif
  switch (job.cache_format) {
    case AS_FLOAT32: return attend_by_rows<AS_FLOAT32>(job);
    case AS_BFLOAT16: return attend_by_rows<AS_BFLOAT16>(job);
    case AS_FLOAT16: return attend_by_rows<AS_FLOAT16>(job);
    default: return attend_by_rows<AS_INT8>(job);
  }
}

bool all_finite(const float* x, int n) {  // n is a multiple of 16
  F zeros = set1(0);
  for (int i = 0; i < n; i += 16) zeros = fma(load(x + i), set1(0), zeros);
  return reduce_sum(zeros) == 0;
}

// A query that attends to fewer positions than other queries of the job is computed alone where its values are not finite: a row
// of the others may have made them so.
void attend(const AttentionJob& given) {
  AttentionJob job = given;
  find_seen(job);
  attend_together(job);
  const int width = (job.value_dim + 15) / 16 * 16;
  for (int r = 0; r < job.num_rows; r++) {
    if (job.visible_begin[r] <= job.seen_begin && job.visible_end[r] >= job.seen_end) continue;
    for (int head = 0; head < job.num_heads; head++) {
      const int at = head * job.num_rows + r;
      if (all_finite(job.value_sum + (int64_t)at * width, width)) continue;
      AttentionJob one = job;
      one.head = job.head + head, one.num_heads = one.num_rows = 1, one.q = job.q + at;
      one.visible_begin = job.visible_begin + r, one.visible_end = job.visible_end + r;
      if (job.biases) one.biases = job.biases + at;
      one.max_score = job.max_score + at, one.exp_sum = job.exp_sum + at, one.value_sum = job.value_sum + (int64_t)at * width;
      find_seen(one);
      attend_together(one);
    }
  }
}

}  // namespace
