// How fast the products and the attention of each build of the kernels are, in one thread, and a digest of what they compute.
// Compiled and run by kernels.py, with TM_TESTED naming the builds. A line for each: case, build, GMAC/s, digest.
//
// The processor time of the thread is measured, so that other work on the machine matters little. The weights are larger than the
// second-level cache, and their tiles lie in memory one behind the other, as in a model.
#include <ctime>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "attention/scratch_bytes.h"
#include "kernels/kernels.h"
#include "products/tile_bytes.h"

namespace {

constexpr int INPUTS = 2048, UNITS = 64;  // of two tiles each
constexpr int ROUNDS = 7;                 // of which the best counts
const char* const SCHEMES[] = {"float32", "bfloat16", "float16", "Q8", "Q4", "Q4_MIN", "Q4_WIDE",
                               "Q4_PAIR", "Q8_WIDE", "Q5_WIDE", "Q6_HALVES", "Q5_MIN", "Q4_INTS", "Q5_INTS", "Q4_SUPER", "Q5_SUPER", "Q6_SUPER"};
const char* const FORMATS[] = {"float32", "bfloat16", "int8", "float16"};

double seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// Memory of any kind at addresses that are multiples of 64.
class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(bytes + 64) {}
  template <class T> T* as() { return (T*)(bytes_.data() + (64 - (uintptr_t)bytes_.data() % 64) % 64); }

 private:
  std::vector<uint8_t> bytes_;
};

uint64_t digest(uint64_t so_far, const float* x, size_t n) {
  for (size_t i = 0; i < n; i++) {
    uint32_t bits;
    memcpy(&bits, x + i, 4);
    so_far = so_far * 1000003 + bits;
  }
  return so_far;
}

void say(const std::string& what, const char* build, double products, double best, uint64_t of) {
  printf("%s,%s,%.2f,%016llx\n", what.c_str(), build, products / best / 1e9, (unsigned long long)of);
}

std::vector<float> numbers(size_t n) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> spread(-1, 1);
  std::vector<float> x(n);
  for (float& one : x) one = spread(random);
  return x;
}

// Random codes below headers of small scales; any bits are a scale where a scheme has two layers of them.
void fill(uint8_t* weights, int scheme, size_t bytes) {
  std::mt19937 random(1);
  const auto half = [&] { return (uint16_t)(0x2000 + random() % 1024); };
  for (size_t i = 0; i < bytes; i += 2) {
    const uint16_t word = scheme <= FLOAT16 ? half() : (uint16_t)random();
    memcpy(weights + i, &word, 2);
  }
  if (scheme == FLOAT32)
    for (size_t i = 0; i < bytes; i += 4) {
      const float one = 0.01f * (float)(random() % 100);
      memcpy(weights + i, &one, 4);
    }
  if (scheme < Q8) return;
  const bool wide = scheme == Q4_WIDE || scheme == Q8_WIDE || scheme == Q5_WIDE;
  const size_t block = (size_t)tile_bytes(scheme, PAD);
  const size_t header = wide && scheme != Q8_WIDE ? 256 : scheme == Q8_WIDE || scheme == Q4_MIN || scheme == Q5_MIN ? 128 : 64;
  for (size_t at = 0; at < bytes; at += is_super(scheme) ? SUPER / PAD * block + HEAD : block)
    for (size_t i = 0; i < header; i += wide ? 4 : 2) {
      const float scale = 0.01f * (float)(1 + random() % 7);
      const uint16_t word = half();
      memcpy(weights + at + i, wide ? (const void*)&scale : &word, wide ? 4 : 2);
    }
}

void products(const Kernels& kernels, int scheme, int tokens) {
  const size_t k = INPUTS, rows = (size_t)tokens + TILE, groups = rows * k / GROUP, tile = (size_t)tile_bytes(scheme, INPUTS);
  Memory floats(rows * k * 4), bfloats(rows * k * 2), codes(rows * k);
  std::vector<float> scales(groups), sums(groups), out((size_t)tokens * 2 * TILE);
  std::vector<int32_t> offsets(groups), first_offsets(groups);
  Activations x{format_of(scheme), INPUTS, floats.as<float>(), bfloats.as<uint16_t>(), codes.as<int8_t>(), scales.data(), sums.data(),
                offsets.data(), first_offsets.data(), nullptr};
  const std::vector<float> given = numbers(rows * k);
  kernels.convert(given.data(), INPUTS, x, 0, tokens, 0, INPUTS);
  Memory weights(2 * UNITS * tile + 32768);  // products prefetch what lies behind
  fill(weights.as<uint8_t>(), scheme, 2 * UNITS * tile);
  double best = 1e9;
  uint64_t of = 0;
  for (int round = 0; round < ROUNDS; round++) {
    const double begin = seconds();
    for (size_t unit = 0; unit < UNITS; unit++) {
      kernels.product[scheme](weights.as<uint8_t>() + 2 * unit * tile, 2, x, 0, tokens, out.data(), 2 * TILE);
      if (round == 0) of = digest(of, out.data(), out.size());
    }
    if (round) best = std::min(best, seconds() - begin);
  }
  say("product of " + std::string(SCHEMES[scheme]) + " x" + std::to_string(tokens), kernels.name,
      (double)k * 2 * TILE * UNITS * tokens, best, of);
}

void attention(const Kernels& kernels, int format, int dim, int group, int tokens) {
  constexpr int KV_HEADS = 8, POSITIONS = 1024;
  const int heads = tokens > 4 ? 1 : KV_HEADS, rows = group * tokens, all = rows * heads;  // as attention divides its work
  const size_t vectors = (size_t)POSITIONS * KV_HEADS, size = (size_t)format_bytes(format);
  const std::vector<float> given = numbers(vectors * (size_t)dim), q = numbers((size_t)all * (size_t)(dim + TILE));
  Memory k(vectors * dim * 4 + 256), v(vectors * dim * 4 + 256), scratch((size_t)attention_scratch_bytes(dim, all));
  std::vector<float> k_scales(vectors), v_scales(vectors), max_score(all), exp_sum(all), value_sum((size_t)all * (dim + TILE));
  for (size_t i = 0; i < vectors; i++) {
    kernels.store_kv(&given[i * dim], dim, format, k.as<uint8_t>() + i * dim * size, &k_scales[i]);
    kernels.store_kv(&given[i * 7 % vectors * dim], dim, format, v.as<uint8_t>() + i * dim * size, &v_scales[i]);
  }
  std::vector<const float*> queries;
  for (int i = 0; i < all; i++) queries.push_back(&q[(size_t)i * (dim + TILE)]);
  const std::vector<int64_t> begins(rows, 0), ends(rows, POSITIONS);
  AttentionJob job{};
  job.k = k.as<void>(), job.v = v.as<void>(), job.k_scales = k_scales.data(), job.v_scales = v_scales.data();
  job.cache_format = format, job.head_dim = job.value_dim = dim, job.num_heads = heads, job.num_kv_heads = KV_HEADS;
  job.scale = 0.125f, job.num_rows = rows, job.q = queries.data(), job.visible_begin = begins.data(), job.visible_end = ends.data();
  job.max_score = max_score.data(), job.exp_sum = exp_sum.data(), job.value_sum = value_sum.data(), job.scratch = scratch.as<uint8_t>();
  double best = 1e9;
  uint64_t of = 0;
  for (int round = 0; round < ROUNDS; round++) {
    const double begin = seconds();
    for (job.head = 0; job.head < KV_HEADS; job.head += heads)
      for (job.begin = 0; job.begin < POSITIONS; job.begin += SPLIT) {
        job.end = job.begin + SPLIT, kernels.attend(job);
        if (round == 0) of = digest(digest(of, exp_sum.data(), exp_sum.size()), value_sum.data(), (size_t)all * dim);
      }
    if (round) best = std::min(best, seconds() - begin);
  }
  say("attention " + std::string(FORMATS[format]) + " head " + std::to_string(dim) + "/" + std::to_string(group) + " x" +
          std::to_string(tokens),
      kernels.name, 2.0 * dim * rows * KV_HEADS * POSITIONS, best, of);
}

}  // namespace

int main() {
  const Kernels* const builds[] = {TM_TESTED};
  for (const Kernels* build : builds) {
    const uint64_t mode = build->begin_step();
    for (int tokens : {1, 4, 64})
      for (int scheme = 0; scheme < NUM_SCHEMES; scheme++) products(*build, scheme, tokens);
    for (int tokens : {1, 16})
      for (int format = 0; format < NUM_FORMATS; format++) {
        attention(*build, format, 64, 3, tokens), attention(*build, format, 128, 4, tokens);
      }
    build->end_step(mode);
  }
}
