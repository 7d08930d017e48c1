// The score of a token in one row of logits: the sum of all weights, from which the token's log-probability follows, its place among
// all tokens, and the likeliest tokens, by the rules of tokenmill's sample/logprobs.py and sample/probabilities.py.
#pragma once
#include "abi.h"
#include "kernels/logits.h"
#include "kernels/rows.h"
#include "kernels/sample.h"
#include "kernels/weights.h"

namespace {

// Logits minus the largest one are float64 here: a log-probability is of the logits as they are, without temperature.
int64_t total_weight(const Logits& row, double largest) {
  alignas(64) float part[CHUNK];
  const int64_t bits = weight_bits(row.size);
  int64_t total = 0;
  for (int64_t from = 0; from < row.size; from += CHUNK) {
    const float* x = chunk(row, from, part);
    int64_t sum = 0;
    for (int i = 0; i < CHUNK; i++) sum += weight((double)x[i] - largest, bits);
    total += sum;
  }
  return total;
}

// The place of a token from 1: tokens with larger logits stand before it, and tokens with lower ids among equals.
int64_t rank_of(const float* x, int64_t size, int64_t token) {
  const float own = x[token];
  int64_t rank = 0;
  for (int64_t from = 0; from < size; from += BLOCK) {
    const int64_t end = size < from + BLOCK ? size : from + BLOCK;
    int32_t num_before = 0;
    for (int64_t i = from; i < end; i++) num_before += (x[i] > own) | ((x[i] == own) & (i <= token));
    rank += num_before;
  }
  return rank;
}

// The num_top tokens with the largest logits, in the order of their ids; of equals at the last place the lowest ids.
void likeliest(const Logits& row, int64_t num_top, int64_t* top, const SampleScratch& scratch) {
  const float least = kth_largest(row, num_top, scratch.numbers());
  const int64_t count = collect(row, least, scratch);
  int64_t num_tied = num_top;
  for (int64_t i = 0; i < count; i++) num_tied -= scratch.x[i] > least;
  for (int64_t i = 0, place = 0; i < count && place < num_top; i++)
    if (scratch.x[i] > least || num_tied-- > 0) top[place++] = scratch.ids[i];
}

// See tm_score. scratch: sample_scratch_bytes(size) bytes; null if num_top is 0.
void score(const float* x, int64_t size, TmScore* wants, int64_t num_top, int64_t* top, uint8_t* scratch) {
  const Logits row{x, size, nullptr, 0};
  wants->largest = x[argmax(x, size)], wants->total = 0;
  if (wants->largest - wants->largest != 0) return;
  wants->total = total_weight(row, wants->largest);
  if (wants->token >= 0) wants->rank = rank_of(x, size, wants->token);
  if (num_top) likeliest(row, num_top, top, sample_scratch(scratch, size));
}

}  // namespace
