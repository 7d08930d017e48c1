// Prints a digest of what each kernel computes from the same numbers, a line each: build, kernel, digest. Builds that compute the
// same bits print the same lines, also on another machine or by another compiler. Numbers come from integers of a generator that
// the standard defines to the bit. "exact": products whose sums are integers, so that rounding has no part in them.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "abi.h"
#include "attention/scratch_bytes.h"
#include "kernels/kernels.h"
#include "kernels/sample_scratch.h"
#include "products/tile_bytes.h"
#include "vector/half.h"

static std::mt19937 generator;

static float uniform(float size) { return (float)((int)(generator() >> 8) - (1 << 23)) * 0x1p-23f * size; }

template <class Number> static std::vector<Number> numbers(size_t count, float size = 1) {
  std::vector<Number> all(count);
  for (Number& number : all) number = (Number)uniform(size);
  return all;
}

class Digest {
 public:
  Digest(const Kernels& kernels, const std::string& what) : build_(kernels.name), what_(what) { generator.seed(1); }
  ~Digest() { std::printf("%s %s %016llx\n", build_, what_.c_str(), (unsigned long long)value_); }
  void add(const void* data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) value_ = (value_ ^ ((const uint8_t*)data)[i]) * 1099511628211u;  // FNV-1a
  }
  template <class Number> void add(const std::vector<Number>& all) { add(all.data(), all.size() * sizeof(Number)); }

 private:
  const char* build_;
  std::string what_;
  uint64_t value_ = 14695981039346656037u;
};

struct Rows {
  std::vector<float> floats, scales, scaled_sums;
  std::vector<uint16_t> bfloats;
  std::vector<int8_t> codes;
  std::vector<int32_t> offsets, first_offsets;
  Rows(size_t tokens, size_t k)
      : floats(tokens * k), scales(tokens * k / GROUP), scaled_sums(scales), bfloats((tokens + 15) * k), codes(tokens * k),
        offsets(scales.size()), first_offsets(offsets) {}
  Activations as(int format, int k) {
    return {format, k, floats.data(), bfloats.data(), codes.data(), scales.data(), scaled_sums.data(), offsets.data(), first_offsets.data(), nullptr};
  }
  void add_to(Digest& digest) const {
    digest.add(floats), digest.add(bfloats), digest.add(codes), digest.add(scales), digest.add(scaled_sums);
    digest.add(offsets), digest.add(first_offsets);
  }
};

// Two tiles. EXACT: all scales, minimums and factors are 1.
static std::vector<uint8_t> two_tiles(int scheme, int k, bool exact) {
  const int headers[] = {0, 0, 0, 64, 64, 128, 256, 64, 128, 256, 64, 128, 64, 64, 64, 64, 64};  // bytes of scales and minimums
  const bool wide = scheme == Q4_WIDE || scheme == Q5_WIDE || scheme == Q8_WIDE;
  std::vector<uint8_t> tiles(2 * (size_t)tile_bytes(scheme, k));
  for (uint8_t& byte : tiles) byte = (uint8_t)generator();
  for (size_t i = 0; i < 32 * (size_t)k; i++) {
    if (scheme == FLOAT32) ((float*)tiles.data())[i] = uniform(1);
    if (scheme == BFLOAT16) ((uint16_t*)tiles.data())[i] = (uint16_t)(0x3f00 + (generator() & 0x80ff));
    if (scheme == FLOAT16) ((uint16_t*)tiles.data())[i] = half_bits(uniform(1));
  }
  for (int pair = 0; scheme >= Q8 && pair < 2 * k / PAD; pair++) {
    const int block = (int)tile_bytes(scheme, PAD);
    uint8_t* header = tiles.data() + (is_super(scheme) ? head_at(pair, block) : block_at(pair, block, false));
    for (int i = 0; i < headers[scheme] / 4; i++) {
      const float number = exact ? 1 : uniform(0.01f);
      const uint32_t halves = exact ? 0x3c003c00 : (uint32_t)half_bits(number) << 16 | half_bits(uniform(0.01f));
      memcpy(header + 4 * i, wide ? (const void*)&number : (const void*)&halves, 4);
    }
    const int bits_of[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 4, 5, 4, 5, 6}, bits = bits_of[scheme];  // where integers precede codes
    const int64_t codes = block_at(pair, block, is_super(scheme)) + block - 128 * bits;
    if (bits && exact) memset(tiles.data() + codes - 64, 1, 64);
  }
  return tiles;
}

static void products(const Kernels& kernels, int scheme, bool exact) {
  Digest digest(kernels, std::string(exact ? "exact" : "") + "product:" + std::to_string(scheme));
  const int k = is_super(scheme) ? (int)SUPER : 192, most = 21;
  Rows rows(most, k);
  const std::vector<float> x = numbers<float>((size_t)(most * k), 3);
  for (int format : {AS_FLOAT32, AS_BFLOAT16, AS_INT8}) kernels.convert(x.data(), k, rows.as(format, k), 0, most, 0, k);
  for (size_t i = 0; exact && i < rows.scales.size(); i++) {
    rows.scales[i] = 1, rows.scaled_sums[i] = (float)(rows.offsets[i] / -8);
  }
  const std::vector<uint8_t> weights = two_tiles(scheme, k, exact);
  for (int tiles : {1, 2})
    for (int count = 1; count <= most; count++) {
      std::vector<float> out((size_t)(count * 32));
      kernels.product[scheme](weights.data(), tiles, rows.as(format_of(scheme), k), 0, count, out.data(), 32);
      digest.add(out);
    }
}

// Products of bfloat16 near and below the smallest normal number.
static void subnormals(const Kernels& kernels) {
  Digest digest(kernels, "subnormal");
  const int k = 64, tokens = 9;
  Rows rows(tokens, k);
  std::vector<float> x = numbers<float>((size_t)(tokens * k), 1e-18f);
  for (size_t i = 0; i < x.size(); i += 3) x[i] *= 1e-20f;
  for (int format : {AS_FLOAT32, AS_BFLOAT16}) kernels.convert(x.data(), k, rows.as(format, k), 0, tokens, 0, k);
  digest.add(rows.bfloats);
  std::vector<uint16_t> weights(16 * (size_t)k);
  for (uint16_t& weight : weights) weight = (uint16_t)(generator() & (generator() % 2 ? 0x9fff : 0x80ff));
  std::vector<float> out(16 * (size_t)tokens);
  kernels.product[BFLOAT16]((const uint8_t*)weights.data(), 1, rows.as(AS_BFLOAT16, k), 0, tokens, out.data(), 16);
  digest.add(out);
}

static void conversions(const Kernels& kernels) {
  Digest digest(kernels, "convert");
  const int k = 1088, tokens = 5;
  Rows rows(tokens, k);
  std::vector<float> x = numbers<float>((size_t)(tokens * k), 10);
  for (int i = 0; i < GROUP; i++) x[(size_t)(3 * GROUP + i)] = 0, x[(size_t)(9 * GROUP + i)] *= 1e-30f;
  for (int format : {AS_FLOAT32, AS_BFLOAT16, AS_INT8}) kernels.convert(x.data(), k, rows.as(format, k), 0, tokens, 0, k);
  rows.add_to(digest);
}

static void activations(const Kernels& kernels, int kind, const char* what) {
  Digest digest(kernels, what + std::to_string(kind));
  std::vector<float> x = numbers<float>(160, 12);
  const std::vector<float> up = numbers<float>(160, 4);
  kernels.activate(x.data(), up.data(), 160, kind, 1.7f, kind == SWIGLU ? 7 : 0.4f);
  digest.add(x);
}

static void single_rows(const Kernels& kernels) {
  const std::vector<float> x = numbers<float>(112, 3), weight = numbers<float>(112, 2), bias = numbers<float>(112);
  std::vector<float> y(112);
  for (int centred : {0, 1}) {
    Digest digest(kernels, "norm");
    std::vector<float> row = x;
    std::fill(row.begin() + 101, row.end(), 0.0f);
    kernels.norm(row.data(), y.data(), 101, weight.data(), centred ? bias.data() : nullptr, 1e-5f, centred);
    digest.add(y.data(), 101 * 4);
  }
  {
    Digest digest(kernels, "rotate");
    kernels.rotate((y = x).data(), weight.data(), bias.data(), 37), digest.add(y);
  }
  {
    Digest digest(kernels, "add");
    kernels.add((y = x).data(), weight.data(), 101), digest.add(y);
    kernels.add_weighted(y.data(), bias.data(), 0.3f, 101), digest.add(y);
    const int64_t largest = kernels.argmax(y.data(), 101);
    digest.add(&largest, 8);
  }
  {
    Digest digest(kernels, "softcap");
    kernels.softcap((y = x).data(), 101, 2.5f), digest.add(y);
  }
}

static void attention(const Kernels& kernels, int format, int head_dim, int value_dim) {
  Digest digest(kernels, "attend:" + std::to_string(format) + ":" + std::to_string(head_dim) + (value_dim == head_dim ? "" : ":" + std::to_string(value_dim)));
  const size_t length = 77, heads = 2, rows = 5, width = (size_t)(head_dim + 15) / 16 * 16;
  const size_t value_width = (size_t)(value_dim + 15) / 16 * 16, size = (size_t)format_bytes(format);
  std::vector<uint8_t> k(length * heads * head_dim * size), v(length * heads * value_dim * size);
  std::vector<float> k_scales(length * heads), v_scales(k_scales);
  for (size_t at = 0; at < length * heads; at++)
    for (bool is_k : {true, false}) {
      const int dim = is_k ? head_dim : value_dim;
      std::vector<float> x = numbers<float>(is_k ? width : value_width, 2);
      std::fill(x.begin() + dim, x.end(), 0.0f);
      kernels.store_kv(x.data(), dim, format, &(is_k ? k : v)[at * dim * size], &(is_k ? k_scales : v_scales)[at]);
    }
  digest.add(k), digest.add(v), digest.add(k_scales), digest.add(v_scales);
  std::vector<float> q = numbers<float>(rows * heads * width, 2);
  std::vector<const float*> q_at;
  for (size_t r = 0; r < rows * heads; r++) {
    q_at.push_back(&q[r * width]);
    for (size_t d = 0; d < width; d++) q[r * width + d] = d < (size_t)head_dim ? q[r * width + d] : 0;
  }
  std::vector<int64_t> first{0, 3, 0, 40, 0}, last{77, 77, 20, 60, 76};
  std::vector<uint8_t> scratch((size_t)attention_scratch_bytes(std::max(head_dim, value_dim), (int)(rows * heads)));
  std::vector<float> best(rows * heads), total(best), values(rows * heads * value_width);
  AttentionJob job{};
  job.k = k.data(), job.v = v.data(), job.k_scales = k_scales.data(), job.v_scales = v_scales.data();
  job.cache_format = format, job.head_dim = head_dim, job.value_dim = value_dim, job.num_heads = job.num_kv_heads = (int)heads;
  job.end = length, job.scale = 0.3f, job.num_rows = rows, job.q = q_at.data();
  job.visible_begin = first.data(), job.visible_end = last.data();
  job.max_score = best.data(), job.exp_sum = total.data(), job.value_sum = values.data(), job.scratch = scratch.data();
  kernels.attend(job);
  digest.add(best), digest.add(total), digest.add(values);
  kernels.merge(&best[0], &total[0], &values[0], best[3], total[3], &values[3 * value_width], (int)value_width);
  digest.add(best), digest.add(total), digest.add(values);
}

static void states(const Kernels& kernels, int keys, int columns, bool delta) {
  Digest digest(kernels, "recur:" + std::to_string(columns) + ":" + std::to_string(delta));
  const int tokens = 19, stride = 2 * keys + columns + 2;
  std::vector<float> x = numbers<float>((size_t)(tokens * stride)), state = numbers<float>((size_t)(keys * columns));
  for (int t = 0; t < tokens; t++) x[(size_t)(t * stride + stride - 1)] *= 40;  // steps of all sizes
  RecurrenceJob job{};
  job.state = state.data(), job.query = x.data(), job.key = x.data() + keys, job.value = x.data() + 2 * keys;
  job.decay = x.data() + stride - 1, job.strength = delta ? x.data() + stride - 2 : nullptr, job.stride = stride;
  job.count = tokens, job.keys = keys, job.columns = columns, job.a_log = -1.5f, job.dt_bias = 0.7f, job.scale = 2;
  job.skip = delta ? 0 : 0.6f, job.min_step = 0.01f, job.max_step = INFINITY;
  kernels.recur(job);
  digest.add(x), digest.add(state);
}

static void convolutions(const Kernels& kernels, int channels, int taps, bool unit) {
  Digest digest(kernels, "convolve:" + std::to_string(channels) + ":" + std::to_string(taps));
  const int tokens = 9, stride = channels + 3;
  std::vector<float> x = numbers<float>((size_t)(tokens * stride), 2), bias = numbers<float>((size_t)channels);
  const std::vector<float> before = numbers<float>((size_t)(taps * channels)), weight = numbers<float>((size_t)(taps * stride));
  kernels.convolve({x.data(), stride, before.data(), weight.data(), stride, unit ? nullptr : bias.data(), tokens, channels, taps,
                    unit ? SILU : IDENTITY, unit, 1e-6f, 0.3f});
  digest.add(x);
}

static void grids(const Kernels& kernels, int bits, int kind) {
  Digest digest(kernels, "grid:" + std::to_string(bits) + ":" + std::to_string(kind));
  const size_t rows = 21, inputs = 32;
  const std::vector<float> x = numbers<float>(inputs * rows, 0.1f), weights = numbers<float>(inputs);
  std::vector<float> scratch(inputs * 16), scales(rows), minimums(rows), squares(weights), factor = numbers<float>(inputs * inputs, 0.1f);
  for (float& weight : squares) weight *= weight;
  for (size_t i = 0; i < inputs; i++) factor[i * inputs + i] = 1.5f;
  kernels.fit_grid(x.data(), rows, inputs, bits, kind, squares.data(), scratch.data(), scales.data(), minimums.data());
  digest.add(scales), digest.add(minimums);
  std::vector<uint8_t> codes(inputs * rows);
  std::vector<float> errors(inputs * rows);
  kernels.round_group(x.data(), rows, inputs, bits, scales.data(), minimums.data(), factor.data(), scratch.data(), codes.data(), errors.data());
  digest.add(codes), digest.add(errors);
}

static void samples(const Kernels& kernels, double temperature, double top_p, int top_k) {
  Digest digest(kernels, "sample:" + std::to_string(top_k));
  const int64_t size = 5003;
  std::vector<uint8_t> scratch((size_t)sample_scratch_bytes(size));
  std::vector<uint32_t> words((size_t)(size / 32 + 1));
  for (int turn = 0; turn < 200; turn++) {
    const std::vector<float> x = numbers<float>((size_t)size, (float)(1 + turn % 30));
    for (uint32_t& word : words) word = generator() % 4 ? (uint32_t)generator() : generator() % 2 ? ~0u : 0;
    TmSample wants{};
    if (turn % 2) wants.words = words.data(), wants.num_words = (int64_t)words.size();
    wants.temperature = temperature, wants.top_p = top_p, wants.top_k = top_k, wants.uniform = generator() * 0x1p-32 + 0x1p-33;
    wants.log_min_p = turn % 3 ? -INFINITY : -2;
    kernels.sample(x.data(), size, &wants, scratch.data());
    digest.add(&wants.token, 8), digest.add(&wants.total, 8), digest.add(&wants.admitted, 4);
  }
}

static void scores(const Kernels& kernels) {
  Digest digest(kernels, "score");
  const int64_t size = 5003, num_top = 20;
  std::vector<uint8_t> scratch((size_t)sample_scratch_bytes(size));
  std::vector<int64_t> top((size_t)num_top);
  for (int turn = 0; turn < 50; turn++) {
    const std::vector<float> x = numbers<float>((size_t)size, (float)(1 + turn % 30));
    TmScore wants{};
    wants.token = turn;
    kernels.score(x.data(), size, &wants, num_top, top.data(), scratch.data());
    digest.add(&wants.total, 8), digest.add(&wants.rank, 8), digest.add(top);
  }
}

int main() {
  tm_best_build();  // asks the system for the matrix unit
  for (const Kernels* kernels : {TM_TESTED}) {
    const uint64_t mode = kernels->begin_step();
    for (int scheme = 0; scheme < NUM_SCHEMES; scheme++) products(*kernels, scheme, false);
    for (int scheme = Q8; scheme < NUM_SCHEMES; scheme++) products(*kernels, scheme, true);
    conversions(*kernels), subnormals(*kernels), single_rows(*kernels);
    for (int kind : {SILU, GELU, GELU_TANH, RELU, RELU2, SWIGLU, SIGMOID, XIELU}) activations(*kernels, kind, "activate:");
    for (int format = 0; format < NUM_FORMATS; format++)
      for (int head_dim : {20, 64, 80})
        for (int value_dim : {head_dim, 36}) attention(*kernels, format, head_dim, value_dim);
    for (int bits : {4, 8})
      for (int kind : {GRID_MINIMUM, GRID_ZERO_POINT, GRID_SYMMETRIC}) grids(*kernels, bits, kind);
    for (bool delta : {false, true})
      for (int columns : {12, 32, 80}) states(*kernels, columns == 80 ? 17 : 128, columns, delta);
    convolutions(*kernels, 64, 3, false), convolutions(*kernels, 40, 4, true);
    samples(*kernels, 0.8, 1, 0), samples(*kernels, 0.7, 0.95, 0), samples(*kernels, 1.3, 0.9, 50), samples(*kernels, 0, 1, 0);
    scores(*kernels);
    kernels->end_step(mode);
  }
}
