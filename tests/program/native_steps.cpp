// Whole steps through tm_make and tm_run, under the sanitizers: tiny models with random weights, every array a heap block of exactly
// its size. The logits of all tokens must be the same bits for any chunks, batch, slots and number of threads and ranks, which are
// threads of this process here, and what Python must not pass is refused. Prints what differs; exit code 1 when something does.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "abi.h"
#include "kernels/kernels.h"
#include "vector/half.h"

static std::mt19937 generator(1);
static int failures = 0;

static void expect(bool good, const std::string& what) {
  if (!good) std::printf("%s\n", what.c_str()), failures++;
}

static std::vector<float> normals(int64_t count, float scale = 1, float mean = 0) {
  std::vector<float> values((size_t)count);
  for (float& value : values) value = mean + scale * std::normal_distribution<float>()(generator);
  return values;
}

// Tiles of random weights of about 1 / sqrt(inputs). Rows behind the last are random too; nobody reads what comes of them.
static std::vector<uint8_t> random_tiles(int scheme, int inputs, int rows) {
  const int64_t size = tm_tile_bytes(scheme, inputs), padded = rounded(inputs, PAD);
  std::vector<uint8_t> bytes((size_t)(size * ((rows + TILE - 1) / TILE)));
  for (auto& byte : bytes) byte = (uint8_t)generator();
  const float scale = 1 / std::sqrt((float)inputs);
  if (scheme == FLOAT32)
    for (size_t i = 0; i < bytes.size() / 4; i++) ((float*)bytes.data())[i] = normals(1, scale)[0];
  if (scheme == BFLOAT16)
    for (size_t i = 0; i < bytes.size() / 2; i++) ((uint16_t*)bytes.data())[i] = (uint16_t)(0x3d00 + (generator() & 0x80ff));
  if (scheme == FLOAT16)
    for (size_t i = 0; i < bytes.size() / 2; i++) ((uint16_t*)bytes.data())[i] = half_bits(normals(1, scale)[0]);
  const int headers[] = {0, 0, 0, 64, 64, 128, 256, 64, 128, 256, 64, 128, 64, 64, 64, 64, 64};  // bytes of scales and minimums
  const bool is_wide = scheme == Q4_WIDE || scheme == Q5_WIDE || scheme == Q8_WIDE;
  const int64_t block = is_super(scheme) ? size / (padded / SUPER) : size / (padded / PAD);
  for (size_t at = 0; scheme >= Q8 && at < bytes.size(); at += (size_t)block)
    for (int i = 0; i < headers[scheme] / 4; i++) {
      const float wide = scale * 0.01f;
      const uint32_t halves = 0x14001400 + (generator() & 0x01ff01ff);
      memcpy(bytes.data() + at + 4 * i, is_wide ? (const void*)&wide : (const void*)&halves, 4);
    }
  return bytes;
}

struct Shape {
  const char* name;
  int hidden, heads, kv_heads, head_dim, intermediate, rotary, cache_format, window, experts, chosen;
  bool gated, learned_positions, qk_norm;
  std::vector<int> schemes;  // of the units, in turn
  int second_kv_heads = 0, second_head_dim = 0;  // of the second layer, if they differ
  bool departs = false;  // norms behind blocks and over all heads, sinks, temperatures, scales; routing as DeepSeek has it
  int second_heads = 0;  // of the second layer, if they are others
  int value_dim = 0, gates = 0;  // entries of a head of v, if they are others than k's; gates of a head's result
};

constexpr int VOCAB = 77, LAYERS = 2, POSITIONS = 300, SLOTS = 700;

// A model in the order in which Python describes one, with everything that its pointers refer to.
struct TestModel {
  Shape shape;
  TmModel model{};
  std::vector<TmOp> ops;
  std::vector<std::vector<TmUnit>> units;
  std::vector<std::vector<uint8_t>> bytes;
  std::vector<std::vector<float>> floats;
  size_t turn = 0;

  explicit TestModel(const Shape& s) : shape(s) {
    TmOp embed = op(TM_EMBED);
    embed.table = keep(normals(VOCAB * s.hidden)), embed.scheme = FLOAT32, embed.outputs = VOCAB;
    if (s.cache_format == AS_FLOAT16) embed.table = keep(random_tiles(FLOAT16, 64, VOCAB * s.hidden / 64 + 1)), embed.scheme = FLOAT16;
    if (s.learned_positions) embed.positions = keep(normals(POSITIONS * s.hidden));
    ops.push_back(embed);
    for (int layer = 0; layer < LAYERS; layer++) {
      if (layer && s.second_head_dim) shape.kv_heads = s.second_kv_heads, shape.head_dim = s.second_head_dim;
      if (layer && s.second_heads) shape.heads = s.second_heads;
      add_layer();
    }
    add_norm(TM_MLP_IN, TM_LOGITS);
    add_linear(TM_LOGITS, TM_MLP_IN, 0, s.hidden, VOCAB, GROUP);
    model = {s.hidden, s.intermediate, VOCAB, s.cache_format, ops.data(), (int)ops.size(), 1, "", POSITIONS, SLOTS};
    model.num_ranks = 1;
  }

  TmOp op(int kind) {
    TmOp made{};
    made.kind = kind, made.eps = 1e-5f, made.scale = made.rescale = 1, made.kv_parts = 2;
    return made;
  }
  const float* keep(std::vector<float> values) { return floats.push_back(std::move(values)), floats.back().data(); }
  uint8_t* keep(std::vector<uint8_t> values) { return bytes.push_back(std::move(values)), bytes.back().data(); }

  void add_layer() {
    add_before(TM_ATTENTION_IN);
    add_attention();
    add_before(TM_MLP_IN);
    const int inner = shape.gated ? TM_GATED : TM_ACTIVATED;
    if (!shape.experts) {
      add_linear(inner, TM_MLP_IN, TM_MLP_INNER, shape.hidden, shape.intermediate, GROUP);
      add_after(TM_MLP_INNER, shape.intermediate);
      return;
    }
    add_linear(TM_ROUTER, TM_MLP_IN, 0, shape.hidden, shape.experts, TILE);
    TmOp choose = op(TM_CHOOSE), combine = op(TM_COMBINE);
    choose.from = TM_MLP_IN, choose.to = TM_GATHERED, choose.normalise = 1;
    choose.experts = combine.experts = shape.experts, choose.chosen = combine.chosen = shape.chosen;
    ops.push_back(choose);
    add_linear(inner, TM_GATHERED, TM_MLP_INNER, shape.hidden, shape.intermediate, GROUP, shape.experts);
    add_linear(TM_EXPERT, TM_MLP_INNER, 0, shape.intermediate, shape.hidden, GROUP, shape.experts);
    if (shape.departs) {
      TmOp& routing = ops[ops.size() - 3];
      routing.sigmoid = 1, routing.scale = 2.5f, routing.groups = 3, routing.chosen_groups = 2;
      routing.correction = keep(normals(shape.experts, 0.1f));
      add_linear(inner, TM_MLP_IN, TM_MLP_INNER, shape.hidden, 40, GROUP);
      add_linear(TM_STORE, TM_MLP_INNER, 0, 40, shape.hidden, GROUP);
      add_linear(TM_SHARED_GATE, TM_MLP_IN, 0, shape.hidden, 1, GROUP);
      combine.shared = TM_GATED_SHARED, combine.epilogue = TM_STORE;
    }
    ops.push_back(combine);
    if (shape.departs) add_norm(0, TM_ADD);
  }

  // The input of a block: normed, or the residual stream itself.
  void add_before(int to) {
    if (!shape.departs) return add_norm(to, TM_TO_BUFFER);
    TmOp copy = op(TM_COPY);
    copy.to = to;
    ops.push_back(copy);
  }

  // The last matrix of a block: added to the residual stream, or left to a norm.
  void add_after(int from, int inputs) {
    add_linear(shape.departs ? TM_STORE : TM_ADD, from, 0, inputs, shape.hidden, GROUP);
    if (shape.departs) add_norm(0, TM_ADD);
  }

  void add_norm(int to, int epilogue) {
    TmOp norm = op(TM_NORM);
    norm.to = to, norm.epilogue = epilogue, norm.scale = epilogue == TM_ADD ? 0.5f : 1, norm.centred = shape.learned_positions;
    norm.weight = keep(normals(shape.hidden, 0.1f, 1));
    if (norm.centred) norm.bias = keep(normals(shape.hidden, 0.1f));
    ops.push_back(norm);
  }

  void add_attention() {
    const int dim = shape.head_dim, value_dim = shape.value_dim ? shape.value_dim : dim;
    const int outputs = (shape.heads + shape.kv_heads) * dim + shape.kv_heads * value_dim;
    const bool uneven = value_dim != dim, stores = shape.departs || uneven;
    const size_t size = (size_t)(SLOTS * shape.kv_heads * format_bytes(shape.cache_format));
    TmOp attend = op(TM_ATTEND);
    attend.to = TM_ATTENDED, attend.scale = 1 / std::sqrt((float)dim), attend.window = shape.window;
    attend.heads = shape.heads, attend.num_kv_heads = shape.kv_heads, attend.head_dim = dim, attend.value_dim = value_dim;
    attend.softcap = shape.window ? 20.0f : 0;
    attend.k_rows = keep(std::vector<uint8_t>(size * (size_t)dim)), attend.v_rows = keep(std::vector<uint8_t>(size * (size_t)value_dim));
    if (shape.cache_format == AS_INT8) {
      attend.k_scales = (float*)keep(std::vector<float>((size_t)(SLOTS * shape.kv_heads)));
      attend.v_scales = (float*)keep(std::vector<float>((size_t)(SLOTS * shape.kv_heads)));
    }
    add_linear(stores ? TM_STORE : TM_QKV, TM_ATTENTION_IN, 0, shape.hidden, outputs, uneven ? GROUP : dim);
    const auto set_heads = [&](TmOp& of) {
      of.heads = shape.heads, of.num_kv_heads = shape.kv_heads, of.head_dim = dim, of.value_dim = value_dim;
    };
    if (!uneven) set_heads(ops.back());
    if (stores) ops.push_back(op(TM_HEADS)), set_heads(ops.back());
    if (shape.departs) {
      ops.back().norm_scope = TM_ALL_HEADS;
      ops.back().q_norm = keep(normals(shape.heads * dim, 0.1f, 1)), ops.back().k_norm = keep(normals(shape.kv_heads * dim, 0.1f, 1));
      ops.back().temperatures = keep(normals(POSITIONS, 0.1f, 1));
      attend.sinks = keep(normals(shape.heads));
    }
    TmOp& qkv = ops.back();
    if (shape.rotary) {
      qkv.rotary = shape.rotary;
      qkv.cosines = keep(normals(POSITIONS * shape.rotary / 2)), qkv.sines = keep(normals(POSITIONS * shape.rotary / 2));
    }
    qkv.k_rows = attend.k_rows, qkv.v_rows = attend.v_rows, qkv.k_scales = attend.k_scales, qkv.v_scales = attend.v_scales;
    if (shape.qk_norm) qkv.q_norm = keep(normals(dim, 0.1f, 1)), qkv.k_norm = keep(normals(dim, 0.1f, 1));
    if (shape.gates) {
      attend.gated = 1, attend.activation = SOFTPLUS, attend.columns = shape.heads * shape.gates;
      add_linear(TM_STORE, TM_ATTENTION_IN, 0, shape.hidden, attend.columns, GROUP);
    }
    ops.push_back(attend);
    add_after(TM_ATTENDED, shape.heads * value_dim);
  }

  void add_linear(int epilogue, int from, int to, int inputs, int outputs, int rows, int experts = 0) {
    TmOp linear = op(TM_LINEAR);
    linear.epilogue = epilogue, linear.from = from, linear.to = to, linear.inputs = inputs, linear.outputs = outputs;
    linear.activation = shape.gated ? SILU : GELU_TANH, linear.experts = experts, linear.chosen = experts ? shape.chosen : 0;
    if (!shape.experts) linear.bias = keep(normals((epilogue == TM_GATED ? 2 : 1) * outputs, 0.1f));
    units.emplace_back();
    for (int expert = 0; expert < std::max(1, experts); expert++)
      for (int first = 0; first < outputs; first += rows) {
        TmUnit unit{};
        unit.first = first, unit.count = std::min(rows, outputs - first);
        unit.scheme = shape.schemes[turn++ % shape.schemes.size()];
        unit.data = keep(random_tiles(unit.scheme, inputs, unit.count));
        if (epilogue == TM_GATED) unit.gate_scheme = unit.scheme, unit.gate = keep(random_tiles(unit.scheme, inputs, unit.count));
        units.back().push_back(unit);
      }
    linear.units = units.back().data(), linear.num_units = (int)units.back().size();
    ops.push_back(linear);
  }
};

// The part of a model that one rank has: units in turn.
struct RankModel {
  TmModel model;
  std::vector<TmOp> ops;
  std::vector<std::vector<TmUnit>> units;

  RankModel(const TestModel& test, const char* build, int threads, int rank, int num_ranks) : model(test.model), ops(test.ops) {
    for (TmOp& op : ops) {
      if (rank && op.kind == TM_EMBED) op.table = nullptr;
      if (op.kind != TM_LINEAR || num_ranks == 1) continue;
      units.emplace_back(op.units, op.units + op.num_units);
      const int each = op.num_units / std::max(1, op.experts);
      for (int i = 0; i < op.num_units; i++)
        if (i % each % num_ranks != rank) units.back()[(size_t)i].data = units.back()[(size_t)i].gate = nullptr;
      op.units = units.back().data();
    }
    model.build = build, model.num_threads = threads, model.ops = ops.data();
    model.rank = rank, model.num_ranks = num_ranks, model.max_tokens = 2 * POSITIONS;
  }
};

struct Running {
  void* model;
  char why[200] = "";
  std::vector<std::unique_ptr<RankModel>> parts;
  std::vector<std::thread> others;
  void* shared = nullptr;

  Running(const TestModel& test, const char* build, int threads, int num_ranks = 1) {
    for (int rank = 0; rank < num_ranks; rank++) parts.emplace_back(new RankModel(test, build, threads, rank, num_ranks));
    if (num_ranks > 1) {
      const size_t num_bytes = (size_t)tm_shared_bytes(&parts[0]->model);
      shared = std::aligned_alloc(64, num_bytes), memset(shared, 0, num_bytes);
    }
    for (auto& part : parts) part->model.shared = shared;
    for (size_t rank = 1; rank < parts.size(); rank++) others.emplace_back([this, rank] { follow(parts[rank]->model); });
    model = tm_make(&parts[0]->model, why, sizeof why);
    expect(model, std::string("tm_make: ") + why);
  }
  Running(const Running&) = delete;
  ~Running() {
    tm_free(model);
    for (std::thread& other : others) other.join();
    std::free(shared);
  }
  static void follow(const TmModel& description) {
    char why[200] = "";
    void* model = tm_make(&description, why, sizeof why);
    expect(model && !tm_follow(model, why, sizeof why), std::string("a rank: ") + why);
    tm_free(model);
  }
};

// Sequences that are computed together: tokens of each, where it starts in this step, and its slots or the first of them.
struct Part {
  std::vector<int64_t> tokens;
  int64_t start, base;
  const std::vector<int64_t>* slots;
};

// Logits [tokens of all parts, VOCAB]; `tokens` afterwards has those that the step found.
static std::vector<float> run(Running& running, const std::vector<Part>& parts, std::vector<int64_t>* found = nullptr) {
  std::vector<int64_t> tokens, positions, slots;
  std::vector<TmSpan> spans;
  std::vector<std::vector<int64_t>> exact;  // slots up to the end of the span and no further
  for (const Part& part : parts) {
    const int64_t end = part.start + (int64_t)part.tokens.size();
    const int64_t* table = nullptr;
    if (part.slots) exact.emplace_back(part.slots->begin(), part.slots->begin() + end), table = exact.back().data();
    spans.push_back({(int64_t)tokens.size(), (int64_t)part.tokens.size(), part.start, part.slots ? -1 : part.base, table, -1, 0, 0});
    for (size_t i = 0; i < part.tokens.size(); i++) {
      const int64_t position = part.start + (int64_t)i;
      tokens.push_back(part.tokens[i]), positions.push_back(position);
      slots.push_back(part.slots ? (*part.slots)[(size_t)position] : part.base + position);
    }
  }
  std::vector<float> logits(tokens.size() * VOCAB);
  TmStep step{};
  step.num_tokens = step.num_rows = (int)tokens.size(), step.num_spans = (int)spans.size();
  step.tokens = tokens.data(), step.positions = positions.data(), step.slots = slots.data(), step.spans = spans.data();
  step.logits = logits.data();
  expect(!tm_run(running.model, &step, running.why, sizeof running.why), std::string("tm_run: ") + running.why);
  if (found) *found = tokens;
  return logits;
}

static std::vector<int64_t> random_tokens(int count) {
  std::vector<int64_t> tokens((size_t)count);
  for (auto& token : tokens) token = generator() % VOCAB;
  return tokens;
}

static std::vector<int64_t> cut(const std::vector<int64_t>& tokens, int64_t from, int64_t to) {
  return {tokens.begin() + from, tokens.begin() + std::min<int64_t>(to, (int64_t)tokens.size())};
}

// One sequence in chunks of a size.
static std::vector<float> in_chunks(Running& running, const std::vector<int64_t>& tokens, int chunk, const std::vector<int64_t>* slots) {
  std::vector<float> all;
  for (int64_t from = 0; from < (int64_t)tokens.size(); from += chunk) {
    const std::vector<float> logits = run(running, {{cut(tokens, from, from + chunk), from, 30, slots}});
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

static bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && !memcmp(a.data(), b.data(), 4 * a.size());
}

// The last `count` tokens of ten sequences of different length, decoded together one by one, as when each is computed alone.
static void check_batch(Running& running, const std::string& name) {
  std::vector<std::vector<int64_t>> sequences;
  std::vector<std::vector<float>> alone;
  for (int i = 0; i < 10; i++) {
    sequences.push_back(random_tokens(20 + 4 * i));
    alone.push_back(in_chunks(running, sequences.back(), 64, nullptr));
  }
  const int count = 4;
  std::vector<int64_t> bases;
  for (int64_t i = 0, base = 0; i < 10; base += (int64_t)sequences[(size_t)i++].size()) bases.push_back(base);
  for (int at = -1; at < count; at++) {  // first all but the last tokens
    std::vector<Part> parts;
    for (size_t i = 0; i < 10; i++) {
      const int64_t start = (int64_t)sequences[i].size() - count;
      parts.push_back(at < 0 ? Part{cut(sequences[i], 0, start), 0, bases[i], nullptr}
                             : Part{cut(sequences[i], start + at, start + at + 1), start + at, bases[i], nullptr});
    }
    const std::vector<float> logits = run(running, parts);
    for (size_t i = 0; at >= 0 && i < 10; i++) {
      const size_t row = sequences[i].size() - count + (size_t)at;
      expect(!memcmp(&logits[i * VOCAB], &alone[i][row * VOCAB], 4 * VOCAB), name + ": a batch differs");
    }
  }
}

// Greedy tokens found within one step are those found step by step.
static void check_multi_step(Running& running, const std::string& name) {
  std::vector<int64_t> tokens = random_tokens(9), found;
  const size_t known = tokens.size();
  for (int i = 0; i < 5; i++) tokens.push_back(-1);
  run(running, {{tokens, 0, 40, nullptr}, {random_tokens(3), 0, 200, nullptr}}, &found);
  tokens.resize(known);
  for (size_t at = known; at < known + 5; at++) {
    const std::vector<float> logits = run(running, {{tokens, 0, 40, nullptr}});
    int64_t index;
    float value;
    tm_argmax(&logits[(at - 1) * VOCAB], 1, VOCAB, &index, &value);
    expect(found[at] == index, name + ": a token found within a step differs");
    tokens.push_back(index);
  }
}

static void check_refused(TestModel& test, Running& running) {
  std::vector<int64_t> tokens = {1, 2, 3}, positions = {0, 1, 2}, slots = {5, 6, 7}, rows = {2}, table = {5, 6, 7};
  TmSpan span{0, 3, 0, 5, nullptr, -1, 0, 0};
  std::vector<float> logits(3 * VOCAB);
  TmStep good{3, 1, 1, 0, tokens.data(), positions.data(), slots.data(), rows.data(), &span, nullptr, nullptr, logits.data()};
  const auto refused = [&](const char* what) {
    char why[200] = "";
    expect(tm_run(running.model, &good, why, sizeof why) == 1 && *why, std::string("not refused: ") + what);
  };
  const auto with = [&](int64_t& value, int64_t bad, const char* what) {
    const int64_t kept = value;
    value = bad, refused(what), value = kept;
  };
  for (int64_t bad : {(int64_t)VOCAB, INT64_MAX, (int64_t)-2}) with(tokens[1], bad, "token");
  for (int64_t bad : {(int64_t)POSITIONS, (int64_t)-1}) with(positions[2], bad, "position");
  for (int64_t bad : {(int64_t)SLOTS, (int64_t)-1}) with(slots[0], bad, "slot");
  for (int64_t bad : {(int64_t)3, (int64_t)-1}) with(rows[0], bad, "row");
  for (int64_t bad : {(int64_t)POSITIONS, (int64_t)-1, INT64_MAX}) with(span.start, bad, "start");
  for (int64_t bad : {(int64_t)SLOTS - 2, INT64_MAX}) with(span.base, bad, "base");
  for (int64_t bad : {(int64_t)2, (int64_t)4, (int64_t)0, INT64_MAX}) with(span.count, bad, "count");
  span.base = -1, refused("span without slots");
  span.slots = table.data();
  for (int64_t bad : {(int64_t)SLOTS, (int64_t)-1}) with(table[1], bad, "span's slot");
  char why[200] = "";
  expect(!tm_run(running.model, &good, why, sizeof why), std::string("refused: ") + why);
  TmUnit& unit = const_cast<TmUnit&>(test.ops[2].units[0]);
  const int kept = unit.scheme;
  unit.scheme = NUM_SCHEMES;
  expect(!tm_make(&test.model, why, sizeof why) && *why, "not refused: scheme");
  unit.scheme = kept;
}

static void check(const Shape& shape, const char* build) {
  TestModel test(shape);
  const std::string name = std::string(build) + " " + shape.name;
  const std::vector<int64_t> tokens = random_tokens(290);
  std::vector<int64_t> scattered(POSITIONS);
  for (int64_t p = 0; p < POSITIONS; p++) scattered[(size_t)p] = (p * 3 + 11) % SLOTS;
  Running one(test, build, 1), two(test, build, 2);
  const std::vector<float> expected = in_chunks(one, tokens, 290, nullptr);
  bool finite = true;
  for (float value : expected) finite &= std::isfinite(value);
  expect(finite, name + ": logits are not finite");
  for (int chunk : {1, 5, 16, 100}) {
    if (chunk == 1 && !strcmp(build, "portable")) continue;  // slow
    expect(same(in_chunks(one, tokens, chunk, nullptr), expected), name + ": chunks differ");
    expect(same(in_chunks(two, tokens, chunk, &scattered), expected), name + ": threads and slots differ");
  }
  Running ranks(test, build, 2, 2), many(test, build, 1, 3);
  for (int chunk : {16, 100, 290}) {
    expect(same(in_chunks(ranks, tokens, chunk, nullptr), expected), name + ": two ranks differ");
    expect(same(in_chunks(many, tokens, chunk, &scattered), expected), name + ": three ranks differ");
  }
  for (Running* running : {&one, &two, &ranks}) check_batch(*running, name), check_multi_step(*running, name);
  check_refused(test, one);
}

int main() {
  const Shape shapes[] = {
      {"float32", 70, 6, 2, 20, 67, 20, AS_FLOAT32, 0, 0, 0, true, false, true, {FLOAT32}},
      {"bfloat16", 64, 4, 2, 32, 96, 16, AS_BFLOAT16, 0, 0, 0, true, false, false, {BFLOAT16}},
      {"float16", 70, 6, 2, 20, 67, 20, AS_FLOAT16, 0, 0, 0, true, false, true, {FLOAT16}},
      {"float16 and others", 64, 4, 2, 32, 96, 16, AS_FLOAT16, 40, 5, 2, true, false, false, {FLOAT16, Q8, BFLOAT16}},
      {"learned positions", 48, 3, 3, 16, 100, 0, AS_BFLOAT16, 40, 0, 0, false, true, false, {BFLOAT16, FLOAT32}},
      {"integers", 64, 4, 1, 16, 160, 16, AS_INT8, 0, 0, 0, true, false, false, {Q8, Q4, Q4_MIN, Q4_WIDE, Q4_PAIR, Q8_WIDE, Q5_WIDE, Q6_HALVES, Q5_MIN}},
      {"superblocks", 256, 4, 2, 64, 256, 64, AS_BFLOAT16, 0, 0, 0, true, false, false, {Q4_SUPER, Q6_SUPER, Q5_SUPER}},
      {"narrower layers", 64, 6, 2, 32, 96, 16, AS_BFLOAT16, 0, 0, 0, true, false, true, {Q4_MIN, Q8}, 6, 22},
      {"wider layers", 64, 6, 6, 16, 96, 16, AS_INT8, 30, 0, 0, true, false, false, {Q8, Q4_MIN, FLOAT32}, 1, 64},
      {"gates and more heads", 64, 4, 2, 20, 70, 16, AS_INT8, 30, 0, 0, true, false, true, {Q8, BFLOAT16}, 0, 0, false, 8, 0, 1},
      {"narrow values", 64, 6, 2, 32, 96, 16, AS_BFLOAT16, 40, 0, 0, true, false, false, {BFLOAT16, Q8}, 0, 0, false, 0, 20},
      {"wide values", 64, 6, 2, 16, 96, 16, AS_INT8, 0, 0, 0, true, false, true, {Q8, FLOAT32}, 0, 0, false, 0, 40, 40},
      {"departures", 64, 4, 2, 20, 70, 16, AS_BFLOAT16, 0, 0, 0, true, false, false, {FLOAT32, BFLOAT16}, 0, 0, true},
      {"routing", 64, 4, 2, 20, 70, 20, AS_INT8, 30, 6, 3, true, false, false, {Q8, Q4_MIN}, 0, 0, true},
      {"many experts", 64, 4, 2, 20, 40, 20, AS_BFLOAT16, 0, 64, 8, true, false, false, {Q8, BFLOAT16, Q4}},
      {"experts", 64, 4, 2, 20, 70, 20, AS_INT8, 0, 5, 2, true, false, false, {Q8, Q4_MIN}},
  };
  tm_best_build();  // asks the system for the matrix unit
  for (const Kernels* kernels : {TM_TESTED}) {
    for (const Shape& shape : shapes) check(shape, kernels->name);
    std::printf("%s: %d differences\n", kernels->name, failures);
  }
  return failures != 0;
}
