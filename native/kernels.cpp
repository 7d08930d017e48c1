// The arithmetic of one row or one tile. Compiled once per instruction set, with TM_BUILD naming the build.
//
// The order of every sum follows from the model's shape alone: along K in order, lanes folded in one fixed way. A row's
// result is the same whether it is computed alone or beside 511 others, so batches and chunks cannot change a bit.
#include "kernels.h"

#include "vec.h"

namespace {

// ---- weights times activations

// With few tokens the processor looks far ahead by itself; with more, its window is full of arithmetic.
constexpr int AHEAD = 4096;
template <int N> TM void fetch(const void* weights) {
#if defined(__GNUC__)
  if (N >= 3) __builtin_prefetch((const char*)weights + AHEAD, 0, 3);
#endif
}

// float32: [k][16 rows]. Four sums, k mod 4 each, folded in pairs.
template <int N>
void tile_float(const uint8_t* weights, const Act& x, int first, float* out, int stride) {
  const float* w = (const float*)weights;
  F sums[N][2];
  for (int t = 0; t < N; t++) sums[t][0] = sums[t][1] = set1(0);
  for (int k = 0; k < x.k; k += 2) {
    const F w0 = load(w + 16 * k), w1 = load(w + 16 * k + 16);
    fetch<N>(w + 16 * k), fetch<N>(w + 16 * k + 16);
    for (int t = 0; t < N; t++) {
      const float* row = x.floats + (int64_t)(first + t) * x.k + k;
      sums[t][0] = fma(w0, set1(row[0]), sums[t][0]);
      sums[t][1] = fma(w1, set1(row[1]), sums[t][1]);
    }
  }
  for (int t = 0; t < N; t++) store(out + t * stride, add(sums[t][0], sums[t][1]));
}

// bfloat16: [k / 2][16 rows][2].
template <int N>
void tile_bfloat(const uint8_t* weights, const Act& x, int first, float* out, int stride) {
  const uint16_t* w = (const uint16_t*)weights;
  F sums[N][2];
  for (int t = 0; t < N; t++) sums[t][0] = sums[t][1] = set1(0);
  for (int k = 0; k < x.k; k += 4) {
    fetch<N>(w + 16 * k), fetch<N>(w + 16 * k + 32);
    for (int t = 0; t < N; t++) {
      const uint16_t* row = x.bfloats + (int64_t)(first + t) * x.k + k;
      sums[t][0] = dot2(sums[t][0], w + 16 * k, row);
      sums[t][1] = dot2(sums[t][1], w + 16 * k + 32, row + 2);
    }
  }
  for (int t = 0; t < N; t++) store(out + t * stride, add(sums[t][0], sums[t][1]));
}

// Integer schemes: per 64 inputs a header and two groups. The integer dot product of a group is exact; its float product is
// added in the order of the groups.
template <int N>
void tile_q8(const uint8_t* w, const Act& x, int first, float* out, int stride) {
  const int groups = x.k / GROUP;
  F sums[N];
  for (int t = 0; t < N; t++) sums[t] = set1(0);
  for (int pair = 0; pair < x.k / PAD; pair++, w += 64 + 2 * 512)
    for (int g = 0; g < 2; g++) {
      const int group = 2 * pair + g;
      const uint8_t* codes = w + 64 + 512 * g;
      I dots[N];
      for (int t = 0; t < N; t++) dots[t] = iset1(-128 * x.sums[(int64_t)(first + t) * groups + group]);
      for (int i = 0; i < 8; i++) {
        const Line line = load_line(codes + 64 * i);
        fetch<N>(codes + 64 * i);
        for (int t = 0; t < N; t++)
          dots[t] = dot4_byte(dots[t], line, x.bytes + (int64_t)(first + t) * x.k + 32 * group + 4 * i);
      }
      const F scale = half((const uint16_t*)(w + 32 * g));
      for (int t = 0; t < N; t++)
        sums[t] = fma(from_int(dots[t]), mul(scale, set1(x.scales[(int64_t)(first + t) * groups + group])), sums[t]);
    }
  for (int t = 0; t < N; t++) store(out + t * stride, sums[t]);
}

// HEADER: bytes before the nibbles of two groups. Scales are half floats, or floats where wide; so are minimums.
template <int N, int HEADER, bool MINIMUM, bool WIDE>
void tile_q4(const uint8_t* w, const Act& x, int first, float* out, int stride) {
  const int groups = x.k / GROUP;
  F sums[N];
  for (int t = 0; t < N; t++) sums[t] = set1(0);
  for (int pair = 0; pair < x.k / PAD; pair++, w += HEADER + 2 * 256)
    for (int g = 0; g < 2; g++) {
      const int group = 2 * pair + g;
      const uint8_t* codes = w + HEADER + 256 * g;
      const int8_t* bytes = x.bytes + (int64_t)first * x.k + 32 * group;
      const int64_t at = (int64_t)first * groups + group;
      I dots[N];
      for (int t = 0; t < N; t++) dots[t] = iset1(MINIMUM ? 0 : -8 * x.sums[at + (int64_t)t * groups]);
      for (int i = 0; i < 4; i++) {
        fetch<N>(codes + 64 * i);
        const Line line = load_line(codes + 64 * i), low = low_nibbles(line), high = high_nibbles(line);
        for (int t = 0; t < N; t++) dots[t] = dot4(dots[t], low, bytes + (int64_t)t * x.k + 4 * i);
        for (int t = 0; t < N; t++) dots[t] = dot4(dots[t], high, bytes + (int64_t)t * x.k + 16 + 4 * i);
      }
      const F scale = WIDE ? load((const float*)(w + 64 * g)) : half((const uint16_t*)(w + 32 * g));
      for (int t = 0; t < N; t++)
        sums[t] = fma(from_int(dots[t]), mul(scale, set1(x.scales[at + (int64_t)t * groups])), sums[t]);
      if (MINIMUM) {
        const F minimum = WIDE ? load((const float*)(w + 128 + 64 * g)) : half((const uint16_t*)(w + 64 + 32 * g));
        for (int t = 0; t < N; t++) sums[t] = fma(minimum, set1(x.moments[at + (int64_t)t * groups]), sums[t]);
      }
    }
  for (int t = 0; t < N; t++) store(out + t * stride, sums[t]);
}

template <int N> void tile_q4_plain(const uint8_t* w, const Act& x, int first, float* out, int stride) {
  tile_q4<N, 64, false, false>(w, x, first, out, stride);
}
template <int N> void tile_q4_min(const uint8_t* w, const Act& x, int first, float* out, int stride) {
  tile_q4<N, 128, true, false>(w, x, first, out, stride);
}
template <int N> void tile_q4_wide(const uint8_t* w, const Act& x, int first, float* out, int stride) {
  tile_q4<N, 256, true, true>(w, x, first, out, stride);
}

// Any number of tokens, eight at a time.
#define TM_ANY(NAME, OF)                                                                             \
  void NAME(const uint8_t* w, const Act& x, int first, int count, float* out, int stride) {          \
    for (; count >= 8; count -= 8, first += 8, out += 8 * (int64_t)stride) OF<8>(w, x, first, out, stride); \
    if (count >= 4) OF<4>(w, x, first, out, stride), count -= 4, first += 4, out += 4 * (int64_t)stride;    \
    if (count == 3) OF<3>(w, x, first, out, stride);                                                 \
    if (count == 2) OF<2>(w, x, first, out, stride);                                                 \
    if (count == 1) OF<1>(w, x, first, out, stride);                                                 \
  }
TM_ANY(any_float, tile_float)
TM_ANY(any_bfloat, tile_bfloat)
TM_ANY(any_q8, tile_q8)
TM_ANY(any_q4, tile_q4_plain)
TM_ANY(any_q4_min, tile_q4_min)
TM_ANY(any_q4_wide, tile_q4_wide)

// ---- activations

void put_bytes(const float* x, const Act& act, int token, int from, int to) {
  for (int group = from / GROUP; group < to / GROUP; group++) {
    const F a = load(x + (group * GROUP - from)), b = load(x + (group * GROUP - from) + 16);
    const float most = largest(max(abs(a), abs(b)));
    const float scale = most / 127.0f, inverse = most > 0 ? 127.0f / most : 0.0f;
    int8_t* bytes = act.bytes + (int64_t)token * act.k + group * GROUP;
    to_bytes(bytes, to_int(mul(a, set1(inverse))));
    to_bytes(bytes + 16, to_int(mul(b, set1(inverse))));
    int32_t total = 0;
    for (int i = 0; i < GROUP; i++) total += bytes[i];
    const int64_t at = (int64_t)token * (act.k / GROUP) + group;
    act.scales[at] = scale;
    act.sums[at] = total;
    act.moments[at] = scale * (float)total;
  }
}

void put(const float* x, const Act& act, int token, int from, int to) {
  if (act.form == AS_INT8) return put_bytes(x, act, token, from, to);
  for (int i = from; i < to; i += 16) {
    const F a = load(x + (i - from));
    if (act.form == AS_FLOAT32)
      store(act.floats + (int64_t)token * act.k + i, a);
    else
      to_bfloat(act.bfloats + (int64_t)token * act.k + i, a);
  }
}

// x and y have room up to a multiple of 16; what lies behind n is zero in x, and in y afterwards.
void norm(const float* x, float* y, int n, const float* weight, const float* bias, float eps, int centred) {
  float mean = 0;
  if (centred) {
    F total = set1(0);
    for (int i = 0; i < n; i += 16) total = add(total, load(x + i));
    mean = sum(total) / (float)n;
  }
  F squares = set1(0);
  const int whole = n / 16 * 16;
  for (int i = 0; i < whole; i += 16) {
    const F d = sub(load(x + i), set1(mean));
    squares = fma(d, d, squares);
  }
  float total = sum(squares);
  for (int i = whole; i < n; i++) total += (x[i] - mean) * (x[i] - mean);
  const float factor = 1.0f / std::sqrt(total / (float)n + eps);
  for (int i = 0; i < whole; i += 16) {
    F r = mul(mul(sub(load(x + i), set1(mean)), set1(factor)), load(weight + i));
    if (bias) r = add(r, load(bias + i));
    store(y + i, r);
  }
  for (int i = whole; i < n; i++) y[i] = (x[i] - mean) * factor * weight[i] + (bias ? bias[i] : 0.0f);
}

TM F tanh_of(F x) {  // 1 - 2 / (e**2x + 1)
  return sub(set1(1), div(set1(2), add(exp(add(x, x)), set1(1))));
}

TM F activation(F x, int kind) {
  if (kind == SILU) return div(x, add(set1(1), exp(sub(set1(0), x))));
  if (kind == RELU) return max(x, set1(0));
  if (kind == GELU_TANH) {
    const F inner = mul(set1(0.7978845608028654f), fma(mul(set1(0.044715f), mul(x, x)), x, x));
    return mul(mul(set1(0.5f), x), add(set1(1), tanh_of(inner)));
  }
  if (kind == GELU) {
    float v[16];
    store(v, x);
    for (int i = 0; i < 16; i++) v[i] = 0.5f * v[i] * (1.0f + std::erf(v[i] * 0.70710678118654752f));
    return load(v);
  }
  return x;
}

void activate(float* x, const float* gate_by, int n, int kind) {  // n is a multiple of 16
  for (int i = 0; i < n; i += 16) {
    const F a = activation(load(x + i), kind);
    store(x + i, gate_by ? mul(a, load(gate_by + i)) : a);
  }
}

// Pairs (i, i + half) turned by their angle. The tail is done lane by lane: the same two operations.
void rotate(float* x, const float* cosines, const float* sines, int half) {
  int i = 0;
  for (; i + 16 <= half; i += 16) {
    const F a = load(x + i), b = load(x + half + i), c = load(cosines + i), s = load(sines + i);
    store(x + i, sub(mul(a, c), mul(b, s)));
    store(x + half + i, add(mul(b, c), mul(a, s)));
  }
  for (; i < half; i++) {
    const float a = x[i], b = x[half + i];
    x[i] = a * cosines[i] - b * sines[i];
    x[half + i] = b * cosines[i] + a * sines[i];
  }
}

void softcap(float* x, int n, float cap) {
  for (int i = 0; i < n; i++) x[i] = std::tanh(x[i] / cap) * cap;
}

void add_to(float* x, const float* y, int n) {
  int i = 0;
  for (; i + 16 <= n; i += 16) store(x + i, add(load(x + i), load(y + i)));
  for (; i < n; i++) x[i] += y[i];
}

// ---- attention

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
void score(const Attend& job, const uint8_t* const* q, const uint32_t* turned, int words, float* out) {
  F sums[N][2];
  for (int r = 0; r < N; r++) sums[r][0] = sums[r][1] = set1(0);
  int d = 0;
  for (; d + 2 <= words; d += 2)
    for (int r = 0; r < N; r++) {
      sums[r][0] = word<WIDE>(sums[r][0], turned, q[r], d);
      sums[r][1] = word<WIDE>(sums[r][1], turned, q[r], d + 1);
    }
  if (d < words)
    for (int r = 0; r < N; r++) sums[r][0] = word<WIDE>(sums[r][0], turned, q[r], d);
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

// N rows: weights [N][SPLIT] times values, W registers of 16 entries at a time, position after position.
template <int N, int W, int FORM, bool WHOLE>
void weigh(const Attend& job, const uint8_t* const* rows, int row, const float* weights, int count, int from) {
  const int width = (job.head_dim + 15) / 16 * 16;
  F sums[N][W];
  for (int r = 0; r < N; r++)
    for (int i = 0; i < W; i++) sums[r][i] = set1(0);
  for (int p = 0; p < count; p++) {
    F values[W];
    for (int i = 0; i < W; i++) values[i] = value<FORM, WHOLE>(rows[p], from + 16 * i, job.head_dim);
    for (int r = 0; r < N; r++) {
      const F weight = set1(weights[r * SPLIT + p]);
      for (int i = 0; i < W; i++) sums[r][i] = fma(weight, values[i], sums[r][i]);
    }
  }
  for (int r = 0; r < N; r++)
    for (int i = 0; i < W; i++) store(job.values + (int64_t)(row + r) * width + from + 16 * i, sums[r][i]);
}

template <int N, int FORM>
void weigh_all(const Attend& job, const uint8_t* const* rows, int row, const float* weights, int count) {
  int from = 0;
  for (; from + 64 <= job.head_dim; from += 64) weigh<N, 4, FORM, true>(job, rows, row, weights, count, from);
  for (; from + 16 <= job.head_dim; from += 16) weigh<N, 1, FORM, true>(job, rows, row, weights, count, from);
  if (from < job.head_dim) weigh<N, 1, FORM, false>(job, rows, row, weights, count, from);
}

// Exponentials of one row's scores, zero where it may not look; notes the largest and the total.
void soften(const Attend& job, int row, float* scores, int count) {
  const int padded = (count + 15) / 16 * 16;
  if (job.softcap > 0) softcap(scores, count, job.softcap);
  const int64_t first = job.first[row] - job.begin, last = job.last[row] - job.begin;
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

// A split's positions: where their rows lie, and the scales of rows in bytes. Fetching them ahead was slower: the processor
// sees the stream by itself.
struct Found {
  const uint8_t *keys[SPLIT], *values[SPLIT];
  alignas(64) float key_scales[SPLIT], value_scales[SPLIT];
};

template <int FORM>
void find_rows(const Attend& job, Found& found) {
  const int64_t bytes = (FORM == AS_FLOAT32 ? 4 : FORM == AS_BFLOAT16 ? 2 : 1) * (int64_t)job.head_dim;
  for (int64_t p = job.begin; p < job.end; p++) {
    const int64_t slot = job.base >= 0 ? job.base + p : job.slots[p], at = slot * job.num_kv_heads + job.head;
    found.keys[p - job.begin] = (const uint8_t*)job.k + at * bytes;
    found.values[p - job.begin] = (const uint8_t*)job.v + at * bytes;
    if (FORM == AS_INT8) {
      found.key_scales[p - job.begin] = job.k_scales[at];
      found.value_scales[p - job.begin] = job.v_scales[at];
    }
  }
}

// Room that attend needs, cut up. Keys in bytes are turned as bfloat16, which holds them exactly.
struct Room {
  uint32_t* turned;   // [blocks][words][16]
  uint8_t* queries;   // [4] rows of words
  float* scores;      // [4][SPLIT]
  uint32_t* widened;  // [16] keys of words: those in bytes, and those of odd length
};

Room cut(const Attend& job) {
  uint8_t* at = job.scratch;
  Room room;
  room.turned = (uint32_t*)at, at += align((int64_t)SPLIT * 4 * (job.head_dim + 1));
  room.queries = at, at += align(4 * 4 * (int64_t)(job.head_dim + 32));
  room.scores = (float*)at, at += 4 * SPLIT * 4;
  room.widened = (uint32_t*)at;
  return room;
}

// N rows against all blocks of turned keys.
template <int N, int FORM>
void attend_rows(const Attend& job, int row, const Room& room, const Found& found) {
  const int count = (int)(job.end - job.begin), blocks = (count + 15) / 16;
  const bool wide = FORM == AS_FLOAT32;
  const int words = wide ? job.head_dim : (job.head_dim + 1) / 2;
  const uint8_t* q[N];
  for (int r = 0; r < N; r++) {
    if (wide) {
      q[r] = (const uint8_t*)job.q[row + r];
      continue;
    }
    uint16_t* narrow = (uint16_t*)(room.queries + r * 4 * (int64_t)((words + 7) / 8 * 8));
    for (int d = 0; d < job.head_dim; d += 16) to_bfloat(narrow + d, load(job.q[row + r] + d));  // padded with zeros
    q[r] = (const uint8_t*)narrow;
  }
  for (int b = 0; b < blocks; b++) {
    float* scores = room.scores + 16 * b;
    score<N, wide>(job, q, room.turned + (int64_t)b * words * 16, words, scores);
    if (FORM == AS_INT8)
      for (int r = 0; r < N; r++)
        store(scores + r * SPLIT, mul(load(scores + r * SPLIT), load(found.key_scales + 16 * b)));
  }
  for (int r = 0; r < N; r++) {
    float* scores = room.scores + r * SPLIT;
    soften(job, row + r, scores, count);
    if (FORM == AS_INT8)
      for (int p = 0; p < count; p++) scores[p] *= found.value_scales[p];
  }
  weigh_all<N, FORM>(job, found.values, row, room.scores, count);
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

template <int FORM>
void attend_in(const Attend& job) {
  const int count = (int)(job.end - job.begin);
  const int words = FORM == AS_FLOAT32 ? job.head_dim : (job.head_dim + 1) / 2;
  const Room room = cut(job);
  Found found;
  memset(found.key_scales, 0, sizeof found.key_scales);
  find_rows<FORM>(job, found);
  for (int b = 0; b < count; b += 16) {
    const uint32_t* block[16];
    for (int i = 0; i < 16; i++)
      block[i] = words_of<FORM>(job, found.keys[b + i < count ? b + i : count - 1], words, room.widened + i * ((words + 7) / 8 * 8));
    turn_keys(block, words, room.turned + (int64_t)b * words);
  }
  int row = 0;
  for (; row + 4 <= job.num_rows; row += 4) attend_rows<4, FORM>(job, row, room, found);
  if (job.num_rows - row == 3) attend_rows<3, FORM>(job, row, room, found);
  if (job.num_rows - row == 2) attend_rows<2, FORM>(job, row, room, found);
  if (job.num_rows - row == 1) attend_rows<1, FORM>(job, row, room, found);
}

void attend(const Attend& job) {
  if (job.cache_form == AS_FLOAT32)
    attend_in<AS_FLOAT32>(job);
  else if (job.cache_form == AS_BFLOAT16)
    attend_in<AS_BFLOAT16>(job);
  else
    attend_in<AS_INT8>(job);
}

void cache_row(const float* x, int n, int form, void* row, float* scale) {  // x is padded with zeros to 16
  if (form == AS_FLOAT32) {
    memcpy(row, x, sizeof(float) * (size_t)n);
    return;
  }
  F most = set1(0);
  if (form == AS_INT8) {
    for (int i = 0; i < n; i += 16) most = max(most, abs(load(x + i)));
    *scale = largest(most) / 127.0f;
  }
  const float inverse = form == AS_INT8 && *scale > 0 ? 127.0f / largest(most) : 0.0f;
  for (int i = 0; i < n; i += 16) {
    alignas(64) uint8_t part[32];
    const int size = form == AS_INT8 ? 1 : 2;
    if (form == AS_INT8)
      to_bytes((int8_t*)part, to_int(mul(load(x + i), set1(inverse))));
    else
      to_bfloat((uint16_t*)part, load(x + i));
    memcpy((uint8_t*)row + i * size, part, (size_t)((n - i < 16 ? n - i : 16) * size));
  }
}

void merge(float* best, float* total, float* values, float best2, float total2, const float* values2, int n) {
  if (total2 == 0) return;
  if (*total == 0) {
    *best = best2, *total = total2;
    memcpy(values, values2, sizeof(float) * (size_t)n);
    return;
  }
  const float most = *best > best2 ? *best : best2;
  float factors[2] = {*best - most, best2 - most};
  alignas(64) float lanes[16] = {factors[0], factors[1]};
  store(lanes, exp(load(lanes)));
  const F f1 = set1(lanes[0]), f2 = set1(lanes[1]);
  for (int i = 0; i < n; i += 16) store(values + i, fma(load(values2 + i), f2, mul(load(values + i), f1)));
  *total = total2 * lanes[1] + *total * lanes[0];
  *best = most;
}

}  // namespace

#define TM_JOIN2(a, b) a##b
#define TM_JOIN(a, b) TM_JOIN2(a, b)
#define TM_TEXT2(a) #a
#define TM_TEXT(a) TM_TEXT2(a)

extern "C" const Kernels TM_JOIN(kernels_, TM_BUILD) = {
    TM_TEXT(TM_BUILD),
    {any_float, any_bfloat, any_q8, any_q4, any_q4_min, any_q4_wide},
    put, norm, activate, rotate, softcap, attend, cache_row, merge, add_to,
};
