// The token of one row of logits: the largest that a mask admits, or a draw with temperature, top_k, top_p and min_p, by the
// rules of tokenmill's sample/filters.py and sample/probabilities.py, number by number. A row's token depends on that row alone.
//
// top_k and min_p keep numbers from a bound on, since temperature and differences keep their order; top_p keeps weights.
#pragma once
#include "abi.h"
#include "kernels/logits.h"
#include "kernels/rows.h"
#include "kernels/weights.h"

namespace {

enum { BLOCK = 16 * CHUNK };  // logits that share one partial sum of weights, so that a draw reads only one block again

TM_INLINE float larger(float a, float b) { return a > b ? a : b; }

// The weights of all numbers, a sum for each block; numbers below the bound weigh nothing.
int64_t sum_blocks(const Logits& row, float bound, const Scaling& how, int64_t* sums) {
  alignas(64) float part[CHUNK];
  int64_t total = 0;
  for (int64_t block = 0; block < row.size; block += BLOCK, sums++) {
    *sums = 0;
    for (int64_t from = block; from < row.size && from < block + BLOCK; from += CHUNK) {
      const float* x = chunk(row, from, part);
      if (x && largest_of(x) >= bound) *sums += sum_of_weights(x, how);
    }
    total += *sums;
  }
  return total;
}

// The sum of weights that a draw looks for in the order of ids; rounded to float64, the product may be above the total.
TM_INLINE int64_t target_of(double uniform, int64_t total) {
  const int64_t target = (int64_t)std::ceil(uniform * (double)total);
  return target < total ? target : total;
}

// The first token with which the weights of all add up to the target, which is at most their sum.
int64_t find(const Logits& row, const Scaling& how, const int64_t* sums, int64_t target) {
  alignas(64) float part[CHUNK];
  alignas(64) int64_t weights[CHUNK];
  int64_t from = 0;
  for (; *sums < target; from += BLOCK) target -= *sums++;
  for (;; from += CHUNK) {
    const float* x = chunk(row, from, part);
    if (!x) continue;
    weigh(x, how, weights);
    for (int i = 0; i < CHUNK; i++)
      if ((target -= weights[i]) <= 0) return from + i;
  }
}

TM_INLINE void weigh_all(const SampleScratch& of, int64_t count, const Scaling& how) {
  for (int64_t i = 0; i < count; i += CHUNK) weigh(of.x + i, how, of.weights + i);
}

TM_INLINE int64_t sum(const int64_t* weights, int64_t count) {
  int64_t total = 0;
  for (int64_t i = 0; i < count; i++) total += weights[i];
  return total;
}

// The weights that top_p keeps: all above `smallest`, and the first num_tied that equal it.
struct Kept { int64_t smallest, num_tied; };

// In descending order, a weight is kept if the weights before it add up to less than `wanted`, which is above 0.
Kept keep_largest(int64_t* begin, int64_t* end, double wanted) {
  int64_t before = 0;
  uint64_t places = 0;
  for (;;) {
    const Parted<int64_t> parted = part_around(begin, end, places);
    int64_t above = 0;
    for (const int64_t* at = begin; at < parted.equal; at++) above += *at;
    if (begin < parted.equal && (double)(before + above) >= wanted) {
      end = parted.equal;
      continue;
    }
    before += above;
    int64_t num_tied = 0;
    for (; num_tied < parted.below - parted.equal && (double)before < wanted; num_tied++) before += parted.pivot;
    if ((double)before >= wanted || parted.below == end) return {parted.pivot, num_tied};
    begin = parted.below;
  }
}

// Leaves the tokens that are kept, in their order.
template <class Keeps> int64_t leave(const SampleScratch& of, int64_t count, Keeps keeps) {
  int64_t left = 0;
  for (int64_t i = 0; i < count; i++)
    if (keeps(of.x[i], of.weights[i])) of.ids[left] = of.ids[i], of.weights[left] = of.weights[i], of.x[left++] = of.x[i];
  for (int i = 0; i < CHUNK; i++) of.x[left + i] = -INFINITY;
  return left;
}

// Reduces collected tokens to the tokens that top_p keeps, and these to the tokens that min_p keeps.
int64_t filter(const TmSample& wants, const SampleScratch& of, int64_t count, double wanted, Scaling& how) {
  memcpy(of.copy, of.weights, sizeof(int64_t) * (size_t)count);
  Kept kept = keep_largest(of.copy, of.copy + count, wanted);
  count = leave(of, count, [&](float, int64_t weight) {
    return weight > kept.smallest || (weight == kept.smallest && kept.num_tied-- > 0);
  });
  float largest = -INFINITY;  // not always 0: where tokens weigh the same, the first are left
  for (int64_t i = 0; i < count; i++) largest = larger(scaled(of.x[i], how), largest);
  count = leave(of, count, [&](float x, int64_t) { return scaled(x, how) - largest >= wants.log_min_p; });
  how.offset = largest;
  if (largest != 0) weigh_all(of, count, how);
  return count;
}

// A bound below which all weights together are at most half of the weight that top_p leaves out.
float bound_of_top_p(double top_p, int64_t total, int64_t size, const Scaling& how) {
  if (1 - top_p < 1e-9) return -INFINITY;  // roundings of the sum may be as large
  const double weight = (1 - top_p) * 0.5 * (double)total / (double)size;
  // The logarithm is float32's, since float64's needs a newer C library than torch does. Its error is far below the half.
  const float below = std::log((float)weight) - (float)how.bits * 0.693147181f;
  return least_scaled_to(below < 0 ? below : 0, how);
}

int64_t draw(const Logits& row, TmSample& wants, const SampleScratch& scratch) {
  const float temperature = larger((float)wants.temperature, FLT_MIN);
  Scaling how{wants.admitted, temperature, 0, weight_bits(row.size)};
  const bool has_top_k = wants.top_k > 0 && wants.top_k < row.size, has_top_p = wants.top_p < 1;
  float bound = least_scaled_to((float)(how.bits + 2) * -0.7f, how);  // smaller numbers weigh nothing
  if (has_top_k) bound = larger(bound, least_scaled_to(scaled(kth_largest(row, wants.top_k, scratch.numbers()), how), how));
  if (!has_top_p) bound = larger(bound, least_scaled_to(wants.log_min_p, how));
  if (!has_top_k && (has_top_p || wants.log_min_p == -INFINITY)) {
    wants.total = sum_blocks(row, bound, how, scratch.weights);
    if (!has_top_p) return find(row, how, scratch.weights, target_of(wants.uniform, wants.total));
    bound = larger(bound, bound_of_top_p(wants.top_p, wants.total, row.size, how));
  }
  int64_t count = collect(row, bound, scratch);
  weigh_all(scratch, count, how);
  if (has_top_k) wants.total = sum(scratch.weights, count);
  if (has_top_p) count = filter(wants, scratch, count, wants.top_p * (double)wants.total, how);
  wants.total = sum(scratch.weights, count);
  int64_t target = target_of(wants.uniform, wants.total), i = 0;
  while ((target -= scratch.weights[i]) > 0) i++;
  return scratch.ids[i];
}

// Chooses the token of one row of logits: see tm_sample. scratch: sample_scratch_bytes(size) bytes; null if the temperature is 0.
void sample(const float* x, int64_t size, TmSample* wants, uint8_t* scratch) {
  const Logits row{x, size, wants->words, wants->num_words};
  const int64_t first = argmax(x, size);
  wants->largest = x[first], wants->total = 0;
  wants->token = admits(row, first) ? first : argmax_admitted(row, x[first] != x[first]);
  wants->admitted = admits(row, wants->token) ? x[wants->token] : -INFINITY;
  if (wants->temperature > 0 && wants->admitted - wants->admitted == 0) wants->token = draw(row, *wants, sample_scratch(scratch, size));
}

}  // namespace
