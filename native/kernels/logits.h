// One row of logits and the mask of its constraint: the largest logit, the k-th largest, logits from a bound on. A mask has a word
// for each 32 tokens, so numbers are read in chunks of 32; numbers that are not admitted count as -infinity.
#pragma once
#include "kernels/kernels.h"
#include "kernels/sample_scratch.h"
#include "vector/vector.h"

namespace {

struct Logits {
  const float* x;
  int64_t size;
  const uint32_t* words;  // null admits every token; no token lies behind its end
  int64_t num_words;
};

// The numbers [from, from + CHUNK), or null if the mask admits none of them. Where it admits some, or at the row's end, they are
// copied to `part`, with -infinity for the others.
TM_INLINE const float* chunk(const Logits& row, int64_t from, float* part) {
  uint32_t bits = ~0u;
  if (row.words) bits = from / CHUNK < row.num_words ? row.words[from / CHUNK] : 0;
  if (!bits) return nullptr;
  const int64_t left = row.size - from;
  if (bits == ~0u && left >= CHUNK) return row.x + from;
  if (left >= CHUNK)
    for (int i = 0; i < CHUNK; i++) part[i] = bits >> i & 1 ? row.x[from + i] : -INFINITY;
  else
    for (int i = 0; i < CHUNK; i++) part[i] = i < left && (bits >> i & 1) ? row.x[from + i] : -INFINITY;
  return part;
}

TM_INLINE float largest_of(const float* x) { return reduce_max(max(load(x), load(x + 16))); }

bool admits(const Logits& row, int64_t token) {
  if (!row.words) return true;
  return token / CHUNK < row.num_words && (row.words[token / CHUNK] >> token % CHUNK & 1);
}

// The first of the largest numbers that are admitted, NaN if there is one; 0 where all are -infinity.
int64_t argmax_admitted(const Logits& row, bool has_nan) {
  alignas(64) float part[CHUNK];
  for (int64_t i = 0; has_nan && i < row.size; i++)
    if (row.x[i] != row.x[i] && admits(row, i)) return i;
  int64_t begin = row.size;
  float best = -INFINITY;
  for (int64_t from = 0; from < row.size; from += CHUNK) {
    const float* x = chunk(row, from, part);
    const float found = x ? largest_of(x) : -INFINITY;
    if (found > best) best = found, begin = from;
  }
  for (int64_t i = begin; i < row.size && i < begin + CHUNK; i++)
    if (row.x[i] == best && admits(row, i)) return i;
  return 0;
}

// Numbers in three groups: [begin, equal) above one of them, the pivot, [equal, below) equal to it, [below, end) below it.
// Functions of the standard library are not used, because builds could share them.
template <class Number> struct Parted {
  Number pivot;
  Number *equal, *below;
};

template <class Number, class Goes> TM_INLINE Number* move_to_front(Number* begin, const Number* end, Goes goes) {
  for (Number* at = begin; at < end; at++) {
    const Number value = *at;
    *at = *begin, *begin = value;
    begin += goes(value);
  }
  return begin;
}

// The pivot is the middle one of three from anywhere: from fixed places, rows in some order would take quadratic time.
template <class Number> TM_INLINE Parted<Number> part_around(Number* begin, Number* end, uint64_t& places) {
  const auto any = [&] { return begin[((places = places * 6364136223846793005u + 1442695040888963407u) >> 33) % (uint64_t)(end - begin)]; };
  const Number a = any(), b = any(), c = any(), low = a < b ? a : b, high = a < b ? b : a;
  const Number pivot = c < low ? low : high < c ? high : c;
  Number* const equal = move_to_front(begin, end, [=](Number value) { return value > pivot; });
  return {pivot, equal, move_to_front(equal, end, [=](Number value) { return value == pivot; })};
}

// The k-th largest of at least k numbers, of which the k largest are moved to the front.
float select(float* begin, float* end, int64_t k) {
  float* const wanted = begin + k - 1;
  uint64_t places = 0;
  for (;;) {
    const Parted<float> parted = part_around(begin, end, places);
    if (wanted < parted.equal)
      end = parted.equal;
    else if (wanted < parted.below)
      return parted.pivot;
    else
      begin = parted.below;
  }
}

// The k-th largest number, or -infinity if fewer are admitted. Numbers that are larger than the k-th so far are collected;
// whenever there are too many, the k largest are kept. collected: has room for 2 k or 256 numbers and one chunk.
float kth_largest(const Logits& row, int64_t k, float* collected) {
  alignas(64) float part[CHUNK];
  const int64_t most = 2 * k < 256 ? 256 : 2 * k;
  float least = -INFINITY;
  int64_t count = 0;
  for (int64_t from = 0; from < row.size; from += CHUNK) {
    const float* x = chunk(row, from, part);
    if (!x || !(largest_of(x) > least)) continue;
    for (int i = 0; i < CHUNK; i++) collected[count] = x[i], count += x[i] > least;
    if (count >= most) least = select(collected, collected + count, k), count = k;
  }
  return count < k ? -INFINITY : select(collected, collected + count, k);
}

// Copies the ids and logits of all admitted tokens whose logit is at least `bound` into the scratch buffers, in ascending order of
// ids. Returns the number of these tokens. A chunk of -infinity, which has the probability 0, follows them, because they are read
// in whole chunks.
int64_t collect(const Logits& row, float bound, const SampleScratch& to) {
  alignas(64) float part[CHUNK];
  int64_t count = 0;
  for (int64_t from = 0; from < row.size; from += CHUNK) {
    const float* x = chunk(row, from, part);
    if (!x || !(largest_of(x) >= bound)) continue;
    for (int i = 0; i < CHUNK; i++) to.ids[count] = (int32_t)(from + i), to.x[count] = x[i], count += x[i] >= bound;
  }
  for (int i = 0; i < CHUNK; i++) to.x[count + i] = -INFINITY;
  return count;
}

}  // namespace
