// Tests of the kernels alone, under the sanitizers: odd sizes, every array a heap block of exactly its size, rows computed alone and
// among others, attention compared with a plain sum in double. Prints what differs; exit code 1 when something does.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "abi.h"
#include "attention/scratch_bytes.h"
#include "kernels/kernels.h"
#include "kernels/sample_scratch.h"
#include "products/tile_bytes.h"
#include "vector/half.h"

static std::mt19937 generator(1);
static int failures = 0;

static float normal() { return std::normal_distribution<float>()(generator); }

static void expect(bool good, const char* what, int a, int b, int c) {
  if (!good) std::printf("%s differs at %d %d %d\n", what, a, b, c), failures++;
}

static float bfloat(uint16_t bits) {
  const uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, 4);
  return value;
}

struct Row {
  std::vector<float> floats, scales, scaled_sums;
  std::vector<uint16_t> bfloats;
  std::vector<int8_t> codes;
  std::vector<int32_t> offsets, first_offsets;
  Row(int tokens, int k)
      : floats(tokens * k), scales(tokens * k / GROUP), scaled_sums(scales), bfloats((tokens + 15) * k), codes(tokens * k), offsets(scales.size()), first_offsets(scales.size()) {}
  Activations as(int format, int k) {
    return {format, k, floats.data(), bfloats.data(), codes.data(), scales.data(), scaled_sums.data(), offsets.data(), first_offsets.data(), nullptr};
  }
};

static bool is_wide(int scheme) { return scheme == Q4_WIDE || scheme == Q5_WIDE || scheme == Q8_WIDE; }

// Codes and factors are random; scales are small half floats, or floats in the wide layouts.
static std::vector<uint8_t> weights(int scheme, int k) {
  std::vector<uint8_t> tile((size_t)tile_bytes(scheme, k));
  for (auto& byte : tile) byte = (uint8_t)generator();
  if (scheme == FLOAT32)
    for (int i = 0; i < k * 16; i++) ((float*)tile.data())[i] = normal();
  if (scheme == BFLOAT16)
    for (int i = 0; i < k * 16; i++) ((uint16_t*)tile.data())[i] = (uint16_t)(0x3f00 + (generator() & 0x80ff));
  if (scheme == FLOAT16)
    for (int i = 0; i < k * 16; i++) ((uint16_t*)tile.data())[i] = half_bits(normal());
  const int headers[] = {0, 0, 0, 64, 64, 128, 256, 64, 128, 256, 64, 128, 64, 64, 64, 64, 64};  // bytes of scales and minimums
  for (int pair = 0; scheme >= Q8 && pair < k / PAD; pair++) {
    const int block = (int)tile_bytes(scheme, PAD);
    uint8_t* header = tile.data() + (is_super(scheme) ? head_at(pair, block) : block_at(pair, block, false));
    for (int i = 0; i < headers[scheme] / 4; i++) {
      const float wide = normal() * 0.01f;
      const uint32_t halves = (0x2000 + (generator() & 0x83ff)) | (0x2000 + (generator() & 0x83ff)) << 16;
      memcpy(header + 4 * i, is_wide(scheme) ? (const void*)&wide : (const void*)&halves, 4);
    }
  }
  return tile;
}

// The weight of one row and input of a tile, as products/products.h describes the layouts.
static double weight(const uint8_t* tile, int scheme, int row, int input) {
  static const int bits_of[] = {0, 0, 0, 8, 4, 4, 4, 4, 8, 5, 6, 5, 4, 5, 4, 5, 6};
  const int bits = bits_of[scheme], group = input % PAD / GROUP, i = input % GROUP;
  const int size = (int)tile_bytes(scheme, PAD), pair = input / PAD;
  const uint8_t* block = tile + pair * size + (is_super(scheme) ? 64 * (pair / 4 + 1) : 0);
  const uint8_t *codes = block + size - 128 * bits + 64 * bits * group + 4 * row + i % 4;
  const uint8_t* header = is_super(scheme) ? tile + pair / 4 * (4 * size + 64) : block;
  const int8_t* integers = (const int8_t*)block + size - 128 * bits - 64;
  const auto number = [&](int at) {
    if (is_wide(scheme)) return (double)((const float*)header)[at];
    const uint16_t half = ((const uint16_t*)header)[at];  // not a denormal, infinity or NaN
    return std::ldexp(1024 + (half & 1023), (half >> 10 & 31) - 25) * (half & 0x8000 ? -1 : 1);
  };
  int code = bits == 8 ? codes[i / 4 * 64] : codes[(bits - 4 + i % 16 / 4) * 64] >> (i < 16 ? 0 : 4) & 15;
  if (bits == 5) code += (codes[0] >> i / 4 & 1) * 16;
  if (bits == 6) code += (codes[i % 16 / 8 * 64] >> (i % 8 / 4 * 2 + (i < 16 ? 0 : 4)) & 3) * 16;
  if (scheme == Q4_INTS || scheme == Q5_INTS || scheme == Q4_SUPER || scheme == Q5_SUPER) {
    const int8_t* factors = integers + 32 * group;
    return code * number(row) * factors[row] + number(16 + row) * factors[16 + row];
  }
  const bool in_pairs = scheme == Q4_PAIR, has_minimum = bits == 5 || in_pairs || scheme == Q4_MIN || scheme == Q4_WIDE;
  const double scale = number((in_pairs || scheme == Q6_SUPER ? 0 : 16 * group) + row);
  if (has_minimum) return code * scale + number((in_pairs ? 16 : 32 + 16 * group) + row);
  const int factor = scheme == Q6_HALVES || scheme == Q6_SUPER ? integers[input % PAD / 16 * 16 + row] : 1;
  return (code - (1 << (bits - 1))) * factor * scale;
}

static void tiles(const Kernels& kernels) {
  for (int k : {64, 192, 512}) {
    const int max_tokens = 85;
    Row rows(max_tokens, k);
    std::vector<float> x(k);
    for (int t = 0; t < max_tokens; t++) {
      for (float& value : x) value = normal();
      for (int format : {AS_FLOAT32, AS_BFLOAT16, AS_INT8}) kernels.convert(x.data(), 0, rows.as(format, k), t, 1, 0, k);
    }
    for (int scheme = 0; scheme < NUM_SCHEMES; scheme++) {
      if (is_super(scheme) != (k % SUPER == 0)) continue;
      Activations act = rows.as(format_of(scheme), k);
      std::vector<uint8_t> pair = weights(scheme, k), second = weights(scheme, k);
      pair.insert(pair.end(), second.begin(), second.end());
      std::vector<float> alone(max_tokens * 32);
      for (int t = 0; t < max_tokens; t++) {
        kernels.product[scheme](pair.data(), 1, act, t, 1, &alone[32 * t], 32);
        kernels.product[scheme](second.data(), 1, act, t, 1, &alone[32 * t + 16], 32);
      }
      for (const uint8_t* kv_prefetch : {(const uint8_t*)nullptr, (const uint8_t*)pair.data()})
        for (int tiles : {1, 2})
          for (int count = 1; count <= max_tokens; count += count < 19 ? 1 : 11) {
            std::vector<float> together(count * 16 * tiles);
            act.kv_prefetch = kv_prefetch;
            kernels.product[scheme](pair.data(), tiles, act, 0, count, together.data(), 16 * tiles);
            for (int t = 0; t < count; t++)
              expect(!memcmp(&together[t * 16 * tiles], &alone[t * 32], 64 * (size_t)tiles), "tile", scheme, k, count);
          }
      for (int row = 0; (scheme == FLOAT32 || scheme == FLOAT16) && row < 16; row++) {
        double sum = 0;
        for (int i = 0; i < k; i++) {
          const int at = 16 * i + row;
          sum += (scheme == FLOAT32 ? ((const float*)pair.data())[at] : half_value(((const uint16_t*)pair.data())[at])) *
                 (double)rows.floats[i];
        }
        expect(std::fabs(sum - alone[row]) < 1e-3, "sum", scheme, k, row);
      }
      for (int row = 0; scheme >= Q8 && row < 16; row++) {
        double sum = 0, size = 0;  // float sums are off by a few 2^-24 of the sizes of what they add
        for (int i = 0; i < k; i++) {
          const double product = weight(pair.data(), scheme, row, i) * rows.codes[i] * rows.scales[i / GROUP];
          sum += product, size += std::fabs(product);
        }
        expect(std::fabs(sum - alone[row]) < 4e-5 * size, "sum", scheme, k, row);
      }
    }
  }
}

// Many groups of a row at once, and one group of many tokens at once: the same codes and sums as group by group, also for zeros, infinity
// and NaN.
static void quantized(const Kernels& kernels) {
  const int k = 1088, tokens = 37, groups = k / GROUP;
  std::vector<float> x(tokens * k);
  for (float& value : x) value = normal() * std::exp(4 * normal());
  std::fill(x.begin() + 3 * GROUP, x.begin() + 4 * GROUP, 0.0f);
  x[5 * GROUP + 7] = INFINITY, x[k + 9 * GROUP + 20] = NAN, x[2 * k + 33 * GROUP] = -NAN;
  Row alone(tokens, k), rows(tokens, k), columns(tokens, k);
  for (int t = 0; t < tokens; t++)
    for (int i = 0; i < k; i += GROUP) kernels.convert(&x[t * k + i], 0, alone.as(AS_INT8, k), t, 1, i, i + GROUP);
  kernels.convert(x.data(), k, rows.as(AS_INT8, k), 0, tokens, 0, k);
  for (int i = 0; i < k; i += GROUP) kernels.convert(&x[i], k, columns.as(AS_INT8, k), 0, tokens, i, i + GROUP);
  for (const Row* many : {&rows, &columns}) {
    expect(many->codes == alone.codes && many->offsets == alone.offsets, "bytes", k, many == &rows, 0);
    expect(many->first_offsets == alone.first_offsets, "first halves", k, many == &rows, 0);
    for (auto sums : {&Row::scales, &Row::scaled_sums})
      expect(!memcmp((many->*sums).data(), (alone.*sums).data(), 4 * (size_t)(tokens * groups)), "sums", k, many == &rows, 0);
  }
  for (int at = 0; at < tokens * groups; at++) {
    int total = 0, first = 0;
    for (int i = 0; i < GROUP; i++) total += alone.codes[at * GROUP + i], first += i < GROUP / 2 ? alone.codes[at * GROUP + i] : 0;
    if (!std::isfinite(alone.scales[at])) continue;
    expect(alone.offsets[at] == -8 * total && alone.first_offsets[at] == -8 * first, "offsets", at, total, alone.offsets[at]);
  }
  expect(std::isnan(alone.scales[groups + 9]) && std::isnan(alone.scales[2 * groups + 33]), "NaN", k, 0, 0);
}

// Rounding to half floats is the same with instructions for it and without: numbers of every exponent, with the bits around which
// it turns. Every half float is itself again.
static void halves(const Kernels& kernels) {
  alignas(64) float x[16] = {};
  uint16_t row[16];
  for (uint32_t high = 0; high < 1 << 16; high += 1 + generator() % 3) {
    for (uint32_t i = 0; i < 16; i++) {
      const uint32_t tails[] = {0, 1, 0x0fff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x2fff, 0x3000, 0x3001, 0x7fff, 0x8000, 0xffff};
      const uint32_t bits = high << 16 | (i < 13 ? tails[i] : generator() & 0xffff);
      memcpy(x + i, &bits, 4);
    }
    kernels.store_kv(x, 16, AS_FLOAT16, row, nullptr);
    for (int i = 0; i < 16; i++) expect(row[i] == half_bits(x[i]), "half", (int)high, i, row[i]);
  }
  for (uint32_t half = 0; half < 1 << 16; half++)
    if ((half & 0x7fff) <= 0x7c00) expect(half_bits(half_value((uint16_t)half)) == half, "half again", (int)half, 0, 0);
}

// Codes of a row with NaN, or with infinity, have a scale that says so.
static void not_finite(const Kernels& kernels) {
  for (const float bad : {NAN, -NAN, INFINITY, -INFINITY})
    for (int at : {0, 7, 18, 31}) {
      alignas(64) float x[32], scale;
      int8_t codes[32];
      for (float& value : x) value = normal();
      x[at] = bad;
      kernels.store_kv(x, 32, AS_INT8, codes, &scale);
      expect(std::isnan(bad) ? std::isnan(scale) : std::isinf(scale), "scale", at, (int)std::isnan(bad), 0);
    }
}

// Activations and caps against the formulas in long double; a cap has the same bits wherever a number stands; NaN stays NaN.
static void activations(const Kernels& kernels) {
  for (int turn = 0; turn < 2000; turn++) {
    float x[16], value[16];
    for (float& number : x) number = std::ldexp(normal(), turn % 24 - 20);
    for (int kind : {GELU_TANH, XIELU}) {
      std::copy(x, x + 16, value);
      kernels.activate(value, nullptr, 16, kind, 0.3f, 0.7f);
      for (int i = 0; i < 16; i++) {
        const long double v = x[i], inner = 0.7978845608028653559L * (v + 0.044715L * v * v * v);
        const long double xielu = v > 0 ? 0.3L * v * v + v / 2 : 0.7L * (std::expm1(v) - v) + v / 2;
        const long double exact = kind == XIELU ? xielu : v / 2 * (1 + std::tanh(inner));
        expect(std::fabs(value[i] - exact) <= 3e-7L * std::max(std::fabs(v), std::fabs(exact)), "activation", turn, kind, i);
      }
    }
    const int count = 1 + turn % 16;
    float some[16];
    std::copy(x, x + 16, value), std::copy(x, x + count, some);
    kernels.softcap(value, 16, 3), kernels.softcap(some, count, 3);
    expect(!memcmp(some, value, sizeof(float) * (size_t)count), "cap of some", turn, count, 0);
    for (int i = 0; i < 16; i++) {
      const long double exact = 3 * std::tanh((long double)x[i] / 3);
      expect(std::fabs(value[i] - exact) <= 4e-7L * std::fabs(exact), "cap", turn, i, 0);
    }
  }
  float bad[3] = {NAN, INFINITY, -INFINITY};
  kernels.softcap(bad, 3, 3);
  expect(std::isnan(bad[0]) && bad[1] == 3 && bad[2] == -3, "cap of what is not finite", 0, 0, 0);
}

struct Cache {
  std::vector<uint8_t> k, v;
  std::vector<float> k_scales, v_scales;
};

static double number(const std::vector<uint8_t>& rows, const std::vector<float>& scales, int format, int64_t at, int head_dim, int d) {
  if (format == AS_FLOAT32) return ((const float*)rows.data())[at * head_dim + d];
  if (format == AS_BFLOAT16) return bfloat(((const uint16_t*)rows.data())[at * head_dim + d]);
  if (format == AS_FLOAT16) return half_value(((const uint16_t*)rows.data())[at * head_dim + d]);
  return (double)((const int8_t*)rows.data())[at * head_dim + d] * scales[at];
}

static void attention(const Kernels& kernels, int format, int head_dim, int value_dim, int heads, int length, int num_rows, bool scattered, bool biased) {
  const int size = format_bytes(format), width = (value_dim + 15) / 16 * 16;
  Cache cache{std::vector<uint8_t>(length * heads * head_dim * size), {}, std::vector<float>(length * heads), {}};
  cache.v.resize(length * heads * value_dim * size), cache.v_scales = cache.k_scales;
  for (int at = 0; at < length * heads; at++)
    for (auto* rows : {&cache.k, &cache.v}) {
      const int dim = rows == &cache.k ? head_dim : value_dim;
      std::vector<float> x(rounded(dim, 16));
      for (int d = 0; d < dim; d++) x[d] = normal();
      auto& scales = rows == &cache.k ? cache.k_scales : cache.v_scales;
      kernels.store_kv(x.data(), dim, format, rows->data() + at * dim * size, &scales[at]);
    }
  std::vector<std::vector<float>> q(num_rows, std::vector<float>(rounded(head_dim, 16)));
  std::vector<const float*> q_at;
  std::vector<int64_t> first(num_rows), last(num_rows), slots(length);
  for (int r = 0; r < num_rows; r++) {
    for (int d = 0; d < head_dim; d++) q[r][d] = bfloat((uint16_t)(0x3f00 + (generator() & 0x80ff)));
    q_at.push_back(q[r].data()), first[r] = r % 3 == 2 ? length / 2 : 0, last[r] = length - r % 2 * (length > 1);
  }
  for (int p = 0; p < length; p++) slots[p] = scattered ? length - 1 - p : p;
  std::vector<std::vector<float>> biases(num_rows, std::vector<float>(rounded(length, 16)));  // of no position more than may be read
  std::vector<const float*> biases_at;
  for (auto& row : biases) {
    for (float& bias : row) bias = normal();
    biases_at.push_back(row.data());
  }
  std::vector<uint8_t> scratch((size_t)attention_scratch_bytes(std::max(head_dim, value_dim), num_rows * heads));
  std::vector<float> best(num_rows), total(num_rows), values(num_rows * width), alone(width);
  AttentionJob job{};
  job.k = cache.k.data(), job.v = cache.v.data(), job.k_scales = cache.k_scales.data(), job.v_scales = cache.v_scales.data();
  job.cache_format = format, job.head_dim = head_dim, job.value_dim = value_dim, job.head = heads - 1, job.num_heads = 1, job.num_kv_heads = heads;
  job.base = scattered ? -1 : 0, job.slots = slots.data(), job.begin = 0, job.end = length, job.scale = 0.3f;
  job.num_rows = num_rows, job.q = q_at.data(), job.biases = biased ? biases_at.data() : nullptr, job.visible_begin = first.data(), job.visible_end = last.data();
  job.max_score = best.data(), job.exp_sum = total.data(), job.value_sum = values.data(), job.scratch = scratch.data();
  kernels.attend(job);
  for (int r = 0; r < num_rows; r++) {
    std::vector<double> expected(value_dim), sizes(value_dim);
    double sum = 0;
    for (int64_t p = first[r]; p < last[r]; p++) {
      const int64_t at = slots[p] * heads + heads - 1;
      double score = 0;
      for (int d = 0; d < head_dim; d++) score += q[r][d] * number(cache.k, cache.k_scales, format, at, head_dim, d);
      const double weight = std::exp(0.3 * score + (biased ? biases[r][p] : 0));
      sum += weight;
      for (int d = 0; d < value_dim; d++) {
        const double value = number(cache.v, cache.v_scales, format, at, value_dim, d);
        expected[d] += weight * value, sizes[d] += weight * std::fabs(value);
      }
    }
    for (int d = 0; d < value_dim; d++) {
      // Where values are bfloat16 so are the weights: half a unit of 2**-8 each, in the values' sum and in the weights' own.
      const double allowed = format == AS_BFLOAT16 ? sizes[d] / sum / 256 + 1e-4 : 2e-3;
      expect(std::fabs(expected[d] / sum - values[r * width + d] / total[r]) < allowed, "attention", format, head_dim, length);
    }
    AttentionJob one = job;
    float one_best, one_total;
    one.num_rows = 1, one.q = &q_at[r], one.biases = biased ? &biases_at[r] : nullptr, one.visible_begin = &first[r], one.visible_end = &last[r];
    one.max_score = &one_best, one.exp_sum = &one_total, one.value_sum = alone.data();
    kernels.attend(one);
    expect(one_total == total[r] && !memcmp(alone.data(), values.data() + r * width, width * 4), "a row alone", format, head_dim, r);
  }
  // All heads together: each row as by itself.
  std::vector<float> all_best(num_rows * heads), all_total(all_best), all_values(num_rows * heads * width);
  std::vector<const float*> all_q, all_biases;
  for (int h = 0; h < heads; h++) {
    all_q.insert(all_q.end(), q_at.begin(), q_at.end());
    all_biases.insert(all_biases.end(), biases_at.begin(), biases_at.end());
  }
  job.head = 0, job.num_heads = heads, job.q = all_q.data(), job.biases = biased ? all_biases.data() : nullptr;
  job.max_score = all_best.data(), job.exp_sum = all_total.data(), job.value_sum = all_values.data();
  kernels.attend(job);
  const int last_head = (heads - 1) * num_rows;
  for (int r = 0; r < num_rows; r++)
    expect(all_total[last_head + r] == total[r] && !memcmp(&all_values[(last_head + r) * width], &values[r * width], width * 4),
           "all heads", format, head_dim, r);
  if (length < 2) return;
  // Rows of NaN at the last position, and at the first: no matter where a query does not attend to them.
  const std::vector<float> before = all_values;
  const uint16_t nan16 = format == AS_FLOAT16 ? 0x7e00 : 0x7fc0;
  for (int position : {length - 1, 0}) {
    const size_t from = (size_t)(slots[(size_t)position] * heads);
    for (auto* rows : {&cache.k, &cache.v}) {
      const size_t dim = (size_t)(rows == &cache.k ? head_dim : value_dim), entries = (size_t)heads * dim, begin = from * dim;
      for (size_t i = 0; i < entries && format != AS_INT8; i++)
        if (format == AS_FLOAT32) ((float*)rows->data())[begin + i] = NAN;
        else ((uint16_t*)rows->data())[begin + i] = nan16;
    }
    for (auto* scales : {&cache.k_scales, &cache.v_scales})
      for (size_t h = 0; h < (size_t)heads; h++) (*scales)[from + h] = NAN;
    kernels.attend(job);
    for (int i = 0; i < heads * num_rows; i++) {
      const int r = i % num_rows;
      const bool sees = last[(size_t)r] == length || (!position && !first[(size_t)r]);
      if (sees) expect(std::isnan(all_values[(size_t)(i * width)]), "NaN that is attended to", format, head_dim, r);
      else expect(!memcmp(&all_values[(size_t)(i * width)], &before[(size_t)(i * width)], (size_t)width * 4), "NaN elsewhere", format, head_dim, r);
    }
  }
}

// The choice of a row's token, step by step on the whole row, with exponentials of the C library; -1 where no token is left.
static int64_t sampled(const std::vector<float>& x, const std::vector<uint32_t>& words, const TmSample& wants) {
  const int64_t size = (int64_t)x.size();
  std::vector<float> row(x);
  for (int64_t i = 0; i < size; i++)
    if (wants.words && (i / 32 >= wants.num_words || !(words[(size_t)(i / 32)] >> i % 32 & 1))) row[(size_t)i] = -INFINITY;
  const int64_t first = std::max_element(row.begin(), row.end()) - row.begin();
  const float largest = row[(size_t)first];
  if (!(wants.temperature > 0) || largest == -INFINITY) return largest == -INFINITY ? -1 : first;
  int bits = 62;
  for (int64_t left = size; left; left /= 2) bits--;
  std::vector<float> sorted;
  for (float& number : row) sorted.push_back(number = (number - largest) / std::max((float)wants.temperature, FLT_MIN));
  std::sort(sorted.rbegin(), sorted.rend());
  const int64_t k = wants.top_k > 0 && wants.top_k < size ? wants.top_k : size;
  for (float& number : row) number = number < sorted[(size_t)(k - 1)] ? -INFINITY : number;
  std::vector<std::pair<int64_t, int64_t>> order;  // weights, negative, with their ids
  const auto weigh = [&](double top) {
    order.clear();
    for (int64_t i = 0; i < size; i++) {
      const double share = (double)std::exp((long double)((double)row[(size_t)i] - top));  // rounded as ours is
      order.push_back({-(int64_t)std::ldexp(share, bits), i});
    }
  };
  const auto total = [&] { return -std::accumulate(order.begin(), order.end(), (int64_t)0, [](int64_t sum, auto& pair) { return sum + pair.first; }); };
  weigh(0);
  const double wanted = wants.top_p * (double)total();
  std::sort(order.begin(), order.end());
  int64_t before = 0;
  for (auto& [weight, i] : order) {
    if (wants.top_p < 1 && !((double)before < wanted)) row[(size_t)i] = -INFINITY;
    before -= weight;
  }
  const float top = *std::max_element(row.begin(), row.end());
  for (float& number : row) number = number - top < wants.log_min_p ? -INFINITY : number;
  weigh(top);
  int64_t target = std::min((int64_t)std::ceil(wants.uniform * (double)total()), total()), i = 0;
  while ((target += order[(size_t)i].first) > 0) i++;
  return i;
}

// Rows of many kinds and sizes, with filters and masks, each array a heap block of its size; and the same token beside other scratch.
static void sampling(const Kernels& kernels) {
  for (int turn = 0; turn < 3000; turn++) {
    const int64_t size = 1 + (int64_t)(generator() % (turn % 10 ? 300 : 3000));
    std::vector<float> x((size_t)size);
    const float scale = std::pow(10.0f, (float)(turn % 5) - 2);
    for (float& number : x) number = turn % 7 ? normal() * scale : (float)(generator() % 3);
    std::vector<uint32_t> words((size_t)((size + 31) / 32) + generator() % 2);
    for (uint32_t& word : words) word = generator() % 3 ? (uint32_t)generator() & (uint32_t)generator() : generator() % 2 ? ~0u : 0;
    TmSample wants{};
    if (turn % 3 == 0) wants.words = words.data(), wants.num_words = (int64_t)words.size();
    const double temperatures[] = {0, 1, 0.7, 3, 1e-30, 1e30};
    wants.temperature = temperatures[generator() % 6], wants.top_p = generator() % 2 ? 1 : 0.9;
    wants.uniform = turn % 11 == 0 ? 0x1p-53 : turn % 11 == 1 ? 1 - 0x1p-53 : ((double)(generator() >> 1) + 0.5) * 0x1p-31;
    wants.log_min_p = generator() % 2 ? -INFINITY : -3, wants.top_k = generator() % 2 ? 0 : 1 + (int)(generator() % 400);
    std::vector<uint8_t> scratch((size_t)sample_scratch_bytes(size), 0xff), other((size_t)sample_scratch_bytes(size));
    TmSample again = wants;
    kernels.sample(x.data(), size, &wants, scratch.data()), kernels.sample(x.data(), size, &again, other.data());
    const int64_t token = sampled(x, words, wants);
    expect(wants.token == again.token && wants.total == again.total, "scratch", turn, (int)wants.token, (int)again.token);
    expect(token == (wants.admitted == -INFINITY ? -1 : wants.token), "sample", turn, (int)token, (int)wants.token);
    expect(wants.largest == *std::max_element(x.begin(), x.end()), "largest", turn, 0, 0);
  }
}

// Rows with ties and forbidden tokens, step by step on the whole row; each array a heap block of its size.
static void scores(const Kernels& kernels) {
  for (int turn = 0; turn < 1000; turn++) {
    const int64_t size = 1 + (int64_t)(generator() % 300), num_top = (int64_t)(generator() % (uint64_t)(size + 1));
    std::vector<float> x((size_t)size);
    for (float& number : x) number = turn % 3 ? normal() * 5 : (float)(generator() % 3);
    for (float& number : x) number = turn % 4 == 3 && generator() % 2 ? -INFINITY : number;
    x[generator() % (uint64_t)size] = 0;
    std::vector<uint8_t> scratch((size_t)sample_scratch_bytes(size), 0xff);
    std::vector<int64_t> order((size_t)size), top((size_t)num_top, -1);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return x[(size_t)a] > x[(size_t)b]; });
    TmScore wants{};
    wants.token = (int64_t)(generator() % (uint64_t)size);
    kernels.score(x.data(), size, &wants, num_top, top.data(), scratch.data());
    const int64_t rank = 1 + (std::find(order.begin(), order.end(), wants.token) - order.begin());
    expect(wants.rank == rank, "rank", turn, (int)wants.rank, (int)rank);
    order.resize((size_t)num_top), std::sort(order.begin(), order.end());
    expect(top == order, "likeliest", turn, (int)size, (int)num_top);
    long double total = 0;
    for (float number : x) total += std::exp((long double)number - (long double)wants.largest);
    int bits = 62;
    for (int64_t left = size; left; left /= 2) bits--;
    const long double exact = std::ldexp(total, bits), error = (long double)wants.total - exact;
    expect(error <= exact * 0x1p-52L && error >= -exact * 0x1p-52L - (long double)size, "total", turn, 0, 0);
  }
}

// Of two tokens the first weighs 2**60: the other weighs the exponential, to less than a unit in the last place, rounded down.
static void exponentials(const Kernels& kernels) {
  std::vector<uint8_t> scratch((size_t)sample_scratch_bytes(2));
  for (int turn = 0; turn < 100000; turn++) {
    const float x[2] = {0, turn % 2 ? -45 * (float)generator() * 0x1p-32f : -std::ldexp((float)generator(), -32 - turn % 90)};
    TmSample wants{};
    wants.temperature = 1, wants.top_p = 1, wants.log_min_p = -INFINITY, wants.uniform = 0.5;
    kernels.sample(x, 2, &wants, scratch.data());
    const long double exact = std::exp((long double)x[1]) * 0x1p60L;
    int exponent;
    std::frexp(exact, &exponent);
    const long double unit = std::ldexp(1.0L, exponent - 53), found = (long double)(wants.total - (1LL << 60));
    expect(found < exact + unit && found > exact - std::max(unit, 1 + unit), "exponential", turn, 0, 0);
  }
}

int main(int argc, char** argv) {
  tm_best_build();  // asks the system for the matrix unit
  for (const Kernels* kernels : {TM_TESTED}) {
    if (argc > 1 && std::strcmp(argv[1], kernels->name)) continue;
    const uint64_t mode = kernels->begin_step();
    tiles(*kernels);
    quantized(*kernels);
    halves(*kernels);
    not_finite(*kernels);
    activations(*kernels);
    sampling(*kernels), scores(*kernels);
    exponentials(*kernels);
    for (int format = 0; format < NUM_FORMATS; format++)
      for (int head_dim : {1, 7, 16, 20, 64, 80, 96})
        for (int length : {1, 15, 17, 128})
          for (bool scattered : {true, false}) {
            for (bool biased : {true, false}) attention(*kernels, format, head_dim, head_dim, 2, length, 1 + length % 9, scattered, biased);
            if (length > 15) attention(*kernels, format, head_dim, head_dim, 3, length, head_dim < 65 ? 35 : 70, scattered, !scattered);
            for (int value_dim : {20, 32, 96})
              if (length > 15 && value_dim != head_dim) attention(*kernels, format, head_dim, value_dim, 3, length, 5, scattered, scattered);
          }
    kernels->end_step(mode);
    std::printf("%s: %d differences\n", kernels->name, failures);
  }
  return failures != 0;
}
