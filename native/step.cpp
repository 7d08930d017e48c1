// One step of a model: the operations in order, each divided among the threads, a barrier where the next needs all of it.
//
// Rows and units are divided, sums are not. Whatever a row needs is computed in the same order for every number of threads,
// tokens beside it and pieces that its prompt came in.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "abi.h"
#include "kernels.h"
#include "threads.h"

namespace {

constexpr int FEW = 16;            // rows up to which every thread norms and folds all of them by itself: no barrier
constexpr int TOKEN_BLOCK = 64;    // of a unit's outputs at a time
constexpr int NUM_BUFFERS = 5;
constexpr int QUERY_TILE = 16;     // positions whose queries attend together in a long chunk
constexpr int FEW_QUERIES = 4;     // positions up to which all heads attend together

const Kernels* const BUILDS[] = {
#if defined(TM_WITH_AVX512)
    &kernels_avx512,
#endif
#if defined(TM_WITH_AVX2)
    &kernels_avx2,
#endif
    &kernels_portable};

int64_t rounded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Memory that starts on a cache line and is zero; grows, never shrinks.
template <typename T>
class Room {
 public:
  T* at_least(int64_t count) {
    if (count > count_) {
      T* fresh = (T*)std::aligned_alloc(64, (size_t)rounded(count * (int64_t)sizeof(T), 64));
      if (!fresh) throw std::bad_alloc();
      memset((void*)fresh, 0, (size_t)rounded(count * (int64_t)sizeof(T), 64));
      std::free(held_), held_ = fresh, count_ = count;
    }
    return held_;
  }
  T* get() const { return held_; }
  Room() = default;
  Room(const Room&) = delete;
  ~Room() { std::free(held_); }

 private:
  T* held_ = nullptr;
  int64_t count_ = 0;
};

// Activations of one buffer, in every form that some linear reads.
struct Buffer {
  int k = 0, forms = 0;
  Room<float> floats, scales, moments;
  Room<uint16_t> bfloats;
  Room<int8_t> bytes;
  Room<int32_t> sums;

  void make(int64_t tokens) {
    const int64_t padded = rounded(k, PAD), groups = padded / GROUP;
    if (forms & 1 << AS_FLOAT32) floats.at_least(tokens * padded);
    if (forms & 1 << AS_BFLOAT16) bfloats.at_least(tokens * padded);
    if (forms & 1 << AS_INT8) {
      bytes.at_least(tokens * padded), scales.at_least(tokens * groups);
      moments.at_least(tokens * groups), sums.at_least(tokens * groups);
    }
  }
  template <typename T>
  static void copy_row(Room<T>& to, int64_t to_row, const Room<T>& from, int64_t from_row, int64_t width) {
    memcpy(to.get() + to_row * width, from.get() + from_row * width, sizeof(T) * (size_t)width);
  }
  // The same row in every form.
  void take(int64_t row, const Buffer& other, int64_t other_row) {
    const int64_t padded = rounded(k, PAD), groups = padded / GROUP;
    if (forms & 1 << AS_FLOAT32) copy_row(floats, row, other.floats, other_row, padded);
    if (forms & 1 << AS_BFLOAT16) copy_row(bfloats, row, other.bfloats, other_row, padded);
    if (forms & 1 << AS_INT8) {
      copy_row(bytes, row, other.bytes, other_row, padded), copy_row(scales, row, other.scales, other_row, groups);
      copy_row(moments, row, other.moments, other_row, groups), copy_row(sums, row, other.sums, other_row, groups);
    }
  }
  Act as(int form) const {
    return {form, (int)rounded(k, PAD), floats.get(), bfloats.get(), bytes.get(), scales.get(), moments.get(), sums.get()};
  }
  // One whole row; x has zeros up to the padded width.
  void put(const Kernels& kernels, const float* x, int token, int from, int to) const {
    for (int form = 0; form < 3; form++)
      if (forms & 1 << form) kernels.put(x, as(form), token, from, to);
  }
};

int form_of(int scheme) { return scheme == FLOAT32 ? AS_FLOAT32 : scheme == BFLOAT16 ? AS_BFLOAT16 : AS_INT8; }

// What one thread has for itself.
struct Desk {
  Buffer buffers[NUM_BUFFERS];
  Room<float> row, tile, gate, values, best, total;
  Room<uint8_t> attend;
  std::vector<const float*> q;
  std::vector<int64_t> first, last;
};

struct Span : TmSpan {
  int64_t partials;    // where its splits' figures lie, or -1: folded at once
  int64_t num_splits;  // of its last position
};

class Model {
 public:
  explicit Model(const TmModel& m) : m_(m), ops_(m.ops, m.ops + m.num_ops), kernels_(find_build(m.build)) {
    threads_ = std::make_unique<Threads>(m.num_threads);
    desks_ = std::vector<Desk>((size_t)m.num_threads);
    width_ = (int)rounded(m.head_dim, TILE);
    // Buffers hold what the linears that read them want. What is gathered comes from what the MLP reads.
    for (const TmOp& op : ops_)
      if (op.kind == TM_LINEAR) {
        for (int i = 0; i < op.num_units; i++) {
          forms_[op.from] |= 1 << form_of(op.units[i].scheme);
          if (op.units[i].gate) forms_[op.from] |= 1 << form_of(op.units[i].gate_scheme);
        }
        widths_[op.from] = std::max(widths_[op.from], op.inputs);
        shares_.push_back(divide(op));
        chosen_ = std::max(chosen_, op.chosen), num_experts_ = std::max(num_experts_, op.experts);
      } else {
        shares_.emplace_back();
      }
    forms_[TM_MLP_IN] |= forms_[TM_GATHERED];
  }

  static const Kernels& find_build(const char* wanted) {
    const std::string name = *wanted ? wanted : tm_best_build();
    for (const Kernels* build : BUILDS)
      if (name == build->name) return *build;
    throw std::runtime_error("there is no build " + name);
  }

  void run(const TmStep& step) {
    prepare(step);
    threads_->run([this](int me) {
      for (size_t i = 0; i < ops_.size(); i++) perform(i, me);
    });
  }

 private:
  // ---- before the threads start

  void prepare(const TmStep& step) {
    step_ = &step;
    const int64_t tokens = step.num_tokens;
    few_ = tokens <= FEW;
    x_.at_least(tokens * rounded(m_.hidden, PAD));
    router_.at_least(tokens * num_experts_);
    q_.at_least(tokens * m_.num_heads * width_);
    attended_.at_least(tokens * rounded((int64_t)m_.num_heads * m_.head_dim, PAD));
    const int64_t pairs = tokens * chosen_;  // of a token and one of its experts
    for (int b = 0; b < NUM_BUFFERS; b++)
      make(shared_[b], b, b == TM_GATHERED ? pairs : b == TM_MLP_INNER ? std::max(tokens, pairs) : tokens);
    parts_.at_least(pairs * m_.hidden);
    for (auto* list : {&picks_, &pair_token_, &pair_of_}) list->resize((size_t)pairs);
    weight_of_.resize((size_t)pairs), chances_.resize((size_t)num_experts_);
    expert_first_.resize((size_t)num_experts_ + 1), next_pair_.resize((size_t)num_experts_);
    for (Desk& desk : desks_) {
      for (int b = 0; b < NUM_BUFFERS; b++) make(desk.buffers[b], b, few_ ? FEW : 0);
      desk.row.at_least(rounded(std::max({m_.hidden, m_.num_heads * m_.head_dim, m_.intermediate}), PAD));
      desk.tile.at_least(TOKEN_BLOCK * (int64_t)std::max(width_, 64)), desk.gate.at_least(TOKEN_BLOCK * 64);
      const int64_t rows = std::max(QUERY_TILE * (m_.num_heads / m_.num_kv_heads), FEW_QUERIES * m_.num_heads);
      desk.values.at_least(2 * rows * width_), desk.best.at_least(2 * rows), desk.total.at_least(2 * rows);
      desk.attend.at_least(attend_scratch_bytes(m_.head_dim, rows));
      desk.q.resize((size_t)rows), desk.first.resize((size_t)rows), desk.last.resize((size_t)rows);
    }
    place_spans(step);
    next_ = std::vector<std::atomic<int>>(ops_.size());
  }

  void make(Buffer& buffer, int number, int64_t tokens) {
    buffer.k = widths_[number], buffer.forms = forms_[number];
    if (buffer.k) buffer.make(tokens);
  }

  // Short spans are attended to split by split, by any thread, and folded afterwards; in long ones a thread folds as it goes.
  void place_spans(const TmStep& step) {
    spans_.clear(), owner_.assign((size_t)step.num_tokens, 0);
    int64_t partials = 0, splits = 0;
    for (int i = 0; i < step.num_spans; i++) splits += (step.spans[i].start + step.spans[i].count + SPLIT - 1) / SPLIT;
    enough_ = splits >= 2 * m_.num_threads;
    for (int i = 0; i < step.num_spans; i++) {
      Span span{step.spans[i], -1, (step.spans[i].start + step.spans[i].count + SPLIT - 1) / SPLIT};
      if (span.count < QUERY_TILE) {
        span.partials = partials;
        partials += span.count * m_.num_heads * span.num_splits;
      }
      spans_.push_back(span);
      std::fill_n(owner_.begin() + span.first, span.count, i);
    }
    part_best_.at_least(partials), part_total_.at_least(partials), part_values_.at_least(partials * width_);
  }

  // Units per thread, the heaviest first to whoever has least; each thread's in the order of memory.
  std::vector<std::vector<int>> divide(const TmOp& op) const {
    std::vector<std::vector<int>> shares((size_t)m_.num_threads);
    if (op.experts) {  // nobody knows which will be chosen: each thread has its part of every one
      const int each = op.num_units / op.experts;
      for (int i = 0; i < op.num_units; i++)
        shares[(size_t)((int64_t)(i % each) * m_.num_threads / each)].push_back(i);
      return shares;
    }
    std::vector<int64_t> loads((size_t)m_.num_threads, 0), cost((size_t)op.num_units);
    std::vector<int> order((size_t)op.num_units);
    for (int i = 0; i < op.num_units; i++) {
      const TmUnit& unit = op.units[i];
      const int64_t tiles = (unit.count + TILE - 1) / TILE;
      order[(size_t)i] = i;
      cost[(size_t)i] = tiles * (tile_bytes(unit.scheme, op.inputs) + (unit.gate ? tile_bytes(unit.gate_scheme, op.inputs) : 0));
    }
    bool even = true;
    for (int64_t c : cost) even &= c == cost[0];
    if (even) {  // one run of memory for each
      for (int i = 0; i < op.num_units; i++) shares[(size_t)((int64_t)i * m_.num_threads / op.num_units)].push_back(i);
      return shares;
    }
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return cost[(size_t)a] > cost[(size_t)b]; });
    for (int i : order) {
      const size_t least = (size_t)(std::min_element(loads.begin(), loads.end()) - loads.begin());
      shares[least].push_back(i), loads[least] += cost[(size_t)i];
    }
    for (auto& share : shares) std::sort(share.begin(), share.end());
    return shares;
  }

  // ---- on every thread; nothing here allocates, since an exception on one thread would leave the others waiting

  void perform(size_t number, int me) {
    const TmOp& op = ops_[number];
    switch (op.kind) {
      case TM_EMBED: embed(op, me), threads_->meet(); break;
      case TM_NORM: norm(op, me); break;
      case TM_LINEAR: linear(op, shares_[number][(size_t)me], me), threads_->meet(); break;
      case TM_ATTEND: attend(op, number, me); break;
      case TM_CHOOSE: choose(op, me); break;
      case TM_COMBINE: combine(op, me), threads_->meet(); break;
    }
  }

  std::pair<int, int> share(int count, int me) const {
    const int64_t n = m_.num_threads;
    return {(int)(count * (int64_t)me / n), (int)(count * (int64_t)(me + 1) / n)};
  }

  float* x(int64_t token) { return x_.get() + token * rounded(m_.hidden, PAD); }

  static float number(const void* table, int scheme, int64_t at) {
    if (scheme == FLOAT32) return ((const float*)table)[at];
    const uint32_t bits = (uint32_t)((const uint16_t*)table)[at] << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
  }

  void embed(const TmOp& op, int me) {
    const auto [from, to] = share(step_->num_tokens, me);
    for (int t = from; t < to; t++) {
      float* row = x(t);
      for (int i = 0; i < m_.hidden; i++) row[i] = number(op.table, op.scheme, step_->tokens[t] * m_.hidden + i);
      if (op.positions)
        for (int i = 0; i < m_.hidden; i++) row[i] += number(op.positions, op.scheme, step_->positions[t] * m_.hidden + i);
    }
  }

  // Buffers are every thread's own while there are few rows, and all threads' together otherwise.
  Buffer& buffer(int number, int me, bool own) { return own ? desks_[(size_t)me].buffers[number] : shared_[number]; }

  // Before the head only the wanted rows are normed, to the front of the buffer.
  void norm(const TmOp& op, int me) {
    const bool wanted = op.epilogue == TM_LOGITS;
    const int count = wanted ? step_->num_rows : step_->num_tokens;
    const auto [from, to] = few_ ? std::pair<int, int>(0, count) : share(count, me);
    float* row = desks_[(size_t)me].row.get();
    const int padded = (int)rounded(m_.hidden, PAD);
    memset(row + m_.hidden, 0, sizeof(float) * (size_t)(padded - m_.hidden));
    for (int t = from; t < to; t++) {
      const int64_t source = wanted && step_->rows ? step_->rows[t] : t;
      kernels_.norm(x(source), row, m_.hidden, op.weight, op.bias, op.eps, op.centred);
      buffer(op.to, me, few_).put(kernels_, row, t, 0, padded);
    }
    if (!few_) threads_->meet();
  }

  void linear(const TmOp& op, const std::vector<int>& units, int me) {
    // An MLP's inner activations and the experts' rows are made by all threads together.
    const bool own = few_ && op.from != TM_MLP_INNER && op.from != TM_GATHERED;
    const Buffer& in = buffer(op.from, me, own);
    const int tokens = op.epilogue == TM_LOGITS ? step_->num_rows : step_->num_tokens;
    Desk& desk = desks_[(size_t)me];
    for (int number : units) {
      const TmUnit& unit = op.units[number];
      const int expert = op.experts ? number / (op.num_units / op.experts) : 0;
      const int begin = op.experts ? expert_first_[(size_t)expert] : 0;
      const int end = op.experts ? expert_first_[(size_t)expert + 1] : tokens;
      for (int first = begin; first < end; first += TOKEN_BLOCK) {
        const int count = std::min(TOKEN_BLOCK, end - first);
        const int stride = (int)rounded(unit.count, GROUP);  // so that a short last group has room for its zeros
        multiply(op, unit.data, unit.scheme, unit.count, in, first, count, desk.tile.get(), stride);
        if (unit.gate) multiply(op, unit.gate, unit.gate_scheme, unit.count, in, first, count, desk.gate.get(), stride);
        for (int t = 0; t < count; t++)
          finish(op, unit, first + t, desk.tile.get() + t * stride, desk.gate.get() + t * stride);
      }
    }
  }

  void multiply(const TmOp& op, const uint8_t* data, int scheme, int rows, const Buffer& in, int first, int count, float* out,
                int stride) {
    const Act act = in.as(form_of(scheme));
    const int64_t bytes = tile_bytes(scheme, op.inputs);
    for (int row = 0; row < rows; row += TILE, data += bytes) kernels_.tile[scheme](data, act, first, count, out + row, stride);
  }

  void finish(const TmOp& op, const TmUnit& unit, int token, float* out, float* gate) {
    switch (op.epilogue) {
      case TM_ADD:
        add_bias(op, unit, out, 0);
        kernels_.add(x(token) + unit.first, out, unit.count);
        break;
      case TM_QKV: add_bias(op, unit, out, 0), finish_head(op, unit, token, out); break;
      case TM_GATED:
        add_bias(op, unit, gate, 0), add_bias(op, unit, out, op.outputs);
        kernels_.activate(gate, out, (int)rounded(unit.count, TILE), op.activation);
        put_columns(op, unit, token, gate);
        break;
      case TM_ACTIVATED:
        add_bias(op, unit, out, 0);
        kernels_.activate(out, nullptr, (int)rounded(unit.count, TILE), op.activation);
        put_columns(op, unit, token, out);
        break;
      case TM_ROUTER:
        memcpy(router_.get() + (int64_t)token * op.outputs + unit.first, out, sizeof(float) * (size_t)unit.count);
        break;
      case TM_PART:
        memcpy(parts_.get() + (int64_t)token * m_.hidden + unit.first, out, sizeof(float) * (size_t)unit.count);
        break;
      case TM_LOGITS: {
        add_bias(op, unit, out, 0);
        if (op.softcap > 0) kernels_.softcap(out, unit.count, op.softcap);
        memcpy(step_->logits + (int64_t)token * m_.vocab + unit.first, out, sizeof(float) * (size_t)unit.count);
        break;
      }
    }
  }

  // Where gate and up have biases, the gate's come first.
  static void add_bias(const TmOp& op, const TmUnit& unit, float* out, int offset) {
    if (op.bias)
      for (int i = 0; i < unit.count; i++) out[i] += op.bias[offset + unit.first + i];
  }

  // 32 columns of an MLP's inner activations; those behind the last are zero.
  void put_columns(const TmOp& op, const TmUnit& unit, int token, float* values) {
    for (int i = unit.count; i < GROUP; i++) values[i] = 0;
    shared_[op.to].put(kernels_, values, token, unit.first, unit.first + GROUP);
  }

  void finish_head(const TmOp& op, const TmUnit& unit, int token, float* out) {
    const int head = unit.first / m_.head_dim, half = m_.rotary / 2;
    const bool is_q = head < m_.num_heads, is_v = head >= m_.num_heads + m_.num_kv_heads;
    if (!is_v) {
      const float* weight = is_q ? op.q_norm : op.k_norm;
      if (weight) kernels_.norm(out, out, m_.head_dim, weight, nullptr, op.eps, 0);
      if (half) kernels_.rotate(out, m_.cosines + step_->positions[token] * half, m_.sines + step_->positions[token] * half, half);
    }
    if (is_q) {
      memcpy(q_.get() + ((int64_t)token * m_.num_heads + head) * width_, out, sizeof(float) * (size_t)m_.head_dim);
      return;
    }
    const int kv_head = head - m_.num_heads - (is_v ? m_.num_kv_heads : 0);
    const int64_t at = step_->slots[token] * m_.num_kv_heads + kv_head;
    const int64_t bytes = (m_.cache_form == AS_FLOAT32 ? 4 : m_.cache_form == AS_BFLOAT16 ? 2 : 1) * m_.head_dim;
    std::fill(out + m_.head_dim, out + width_, 0.0f);
    float* scales = is_v ? op.v_scales : op.k_scales;
    kernels_.cache_row(out, m_.head_dim, m_.cache_form, (uint8_t*)(is_v ? op.v_rows : op.k_rows) + at * bytes,
                       scales ? scales + at : nullptr);
  }

  // ---- experts

  void choose(const TmOp& op, int me) {
    if (me == 0) route(op);
    threads_->meet();
    const auto [from, to] = share((int)pair_token_.size(), me);
    for (int p = from; p < to; p++) shared_[op.to].take(p, buffer(op.from, me, few_), pair_token_[(size_t)p]);
    threads_->meet();
  }

  // Softmax over the experts, the likeliest `chosen` of them, and all pairs of token and expert, expert by expert.
  void route(const TmOp& op) {
    const int tokens = step_->num_tokens;
    std::fill(expert_first_.begin(), expert_first_.end(), 0);
    for (int t = 0; t < tokens; t++) {
      const float* logits = router_.get() + (int64_t)t * op.experts;
      const float most = *std::max_element(logits, logits + op.experts);
      float total = 0, picked = 0;
      for (int e = 0; e < op.experts; e++) total += chances_[(size_t)e] = std::exp(logits[e] - most);
      int* mine = picks_.data() + t * op.chosen;
      for (int c = 0; c < op.chosen; c++) {
        int best = -1;
        for (int e = 0; e < op.experts; e++)
          if (std::find(mine, mine + c, e) == mine + c && (best < 0 || chances_[(size_t)e] > chances_[(size_t)best])) best = e;
        mine[c] = best, picked += chances_[(size_t)best];
      }
      std::sort(mine, mine + op.chosen);
      for (int c = 0; c < op.chosen; c++) {
        weight_of_[(size_t)(t * op.chosen + c)] = chances_[(size_t)mine[c]] / (op.normalise ? picked : total);
        expert_first_[(size_t)mine[c] + 1]++;
      }
    }
    for (int e = 0; e < op.experts; e++) expert_first_[(size_t)e + 1] += expert_first_[(size_t)e];
    std::copy(expert_first_.begin(), expert_first_.end() - 1, next_pair_.begin());
    for (size_t i = 0; i < picks_.size(); i++) {
      pair_of_[i] = next_pair_[(size_t)picks_[i]]++;
      pair_token_[(size_t)pair_of_[i]] = (int)i / op.chosen;
    }
  }

  void combine(const TmOp& op, int me) {
    const auto [from, to] = share(step_->num_tokens, me);
    float* sum = desks_[(size_t)me].row.get();
    for (int t = from; t < to; t++) {
      std::fill_n(sum, m_.hidden, 0.0f);
      for (int c = 0; c < op.chosen; c++) {
        const size_t at = (size_t)(t * op.chosen + c);
        const float* part = parts_.get() + (int64_t)pair_of_[at] * m_.hidden;
        for (int i = 0; i < m_.hidden; i++) sum[i] += weight_of_[at] * part[i];
      }
      kernels_.add(x(t), sum, m_.hidden);
    }
  }

  // ---- attention

  // Tasks are numbered alike on all threads; whoever is free takes the next one.
  void attend(const TmOp& op, size_t number, int me) {
    int task = 0, mine = next_[number].fetch_add(1, std::memory_order_relaxed);
    for (const Span& span : spans_) {
      // Where there are splits enough for all threads, a task takes all heads of one: the cache is read in one stream.
      const bool whole = enough_ && span.count <= FEW_QUERIES;
      const int heads = whole ? 1 : m_.num_kv_heads;
      const int64_t pieces = span.partials >= 0 ? span.num_splits : (span.count + QUERY_TILE - 1) / QUERY_TILE;
      const int64_t tasks = pieces * heads;
      for (; mine < task + tasks; mine = next_[number].fetch_add(1, std::memory_order_relaxed)) {
        const int64_t piece = pieces - 1 - (mine - task) / heads;  // the longest first
        const int head = (int)((mine - task) % heads);
        if (span.partials < 0) {
          attend_queries(op, span, piece * QUERY_TILE, head, me);
        } else if ((piece + 1) * SPLIT > first_seen(op, span.start)) {
          attend_split(op, span, piece, head, whole ? m_.num_kv_heads : 1, me);
        }
      }
      task += (int)tasks;
    }
    threads_->meet();
    const auto [from, to] = few_ ? std::pair<int, int>(0, step_->num_tokens) : share(step_->num_tokens, me);
    for (int t = from; t < to; t++) hand_over(op, t, me);
    if (!few_) threads_->meet();
  }

  Attend job_for(const TmOp& op, const Span& span, int head, int64_t begin, int64_t end, Desk& desk) const {
    Attend job{};
    job.k = op.k_rows, job.v = op.v_rows, job.k_scales = op.k_scales, job.v_scales = op.v_scales;
    job.cache_form = m_.cache_form, job.head_dim = m_.head_dim, job.head = head, job.num_heads = 1, job.num_kv_heads = m_.num_kv_heads;
    job.base = span.base, job.slots = span.slots;
    job.begin = begin, job.end = end, job.scale = op.scale, job.softcap = op.softcap;
    job.scratch = desk.attend.get();
    return job;
  }

  static int64_t first_seen(const TmOp& op, int64_t position) {
    return op.window ? std::max<int64_t>(0, position - op.window + 1) : 0;
  }

  // Figures of one split and one kv head lie together: positions, then heads of the group.
  int64_t place(const Span& span, int64_t split, int head) const {
    return span.partials + (split * m_.num_kv_heads + head) * span.count * (m_.num_heads / m_.num_kv_heads);
  }

  // All rows of a short span and some kv heads against one split.
  void attend_split(const TmOp& op, const Span& span, int64_t split, int head, int num_heads, int me) {
    const int64_t begin = split * SPLIT, at = place(span, split, head);
    Attend job = job_for(op, span, head, begin, std::min(begin + SPLIT, span.start + span.count), desks_[(size_t)me]);
    job.num_heads = num_heads;
    job.best = part_best_.get() + at, job.total = part_total_.get() + at, job.values = part_values_.get() + at * width_;
    attend_rows(op, span, 0, span.count, job, me);
  }

  // The rows of each kv head's group at the positions [from, from + count) of a span.
  void attend_rows(const TmOp& op, const Span& span, int64_t from, int64_t count, Attend& job, int me) {
    const int group = m_.num_heads / m_.num_kv_heads;
    Desk& desk = desks_[(size_t)me];
    const int64_t rows = count * group;
    for (int64_t r = 0; r < rows; r++) {
      const int64_t i = from + r / group, position = span.start + i;
      for (int h = 0; h < job.num_heads; h++)
        desk.q[(size_t)(h * rows + r)] = q_.get() + ((span.first + i) * m_.num_heads + (job.head + h) * group + r % group) * width_;
      desk.first[(size_t)r] = first_seen(op, position), desk.last[(size_t)r] = position + 1;
    }
    job.num_rows = (int)rows, job.q = desk.q.data(), job.first = desk.first.data(), job.last = desk.last.data();
    kernels_.attend(job);
  }

  // A tile of a long span's positions, one kv head: split after split, folded as they come.
  void attend_queries(const TmOp& op, const Span& span, int64_t from, int head, int me) {
    const int group = m_.num_heads / m_.num_kv_heads;
    const int64_t count = std::min<int64_t>(QUERY_TILE, span.count - from), rows = count * group;
    const int64_t first = first_seen(op, span.start + from), last = span.start + from + count;
    Desk& desk = desks_[(size_t)me];
    float *best = desk.best.get(), *total = desk.total.get(), *values = desk.values.get();
    std::fill_n(total, rows, 0.0f);
    for (int64_t begin = first / SPLIT * SPLIT; begin < last; begin += SPLIT) {
      Attend job = job_for(op, span, head, begin, std::min(begin + SPLIT, last), desk);
      job.best = best + rows, job.total = total + rows, job.values = values + rows * width_;
      attend_rows(op, span, from, count, job, me);
      for (int64_t r = 0; r < rows; r++)
        kernels_.merge(best + r, total + r, values + r * width_, best[rows + r], total[rows + r],
                       values + (rows + r) * width_, width_);
    }
    for (int64_t r = 0; r < rows; r++)
      write_head(head * group + (int)(r % group), values + r * width_, total[r], attended(span.first + from + r / group));
  }

  float* attended(int64_t token) { return attended_.get() + token * rounded((int64_t)m_.num_heads * m_.head_dim, PAD); }

  void write_head(int head, const float* values, float total, float* row) const {
    for (int i = 0; i < m_.head_dim; i++) row[head * m_.head_dim + i] = values[i] / total;
  }

  // Fold what is in splits, then into the form that the next linear reads.
  void hand_over(const TmOp& op, int token, int me) {
    const Span& span = spans_[(size_t)owner_[(size_t)token]];
    Desk& desk = desks_[(size_t)me];
    const int group = m_.num_heads / m_.num_kv_heads, wide = m_.num_heads * m_.head_dim, padded = (int)rounded(wide, PAD);
    const float* row = attended(token);
    if (span.partials >= 0) {
      float* own = desk.row.get();
      memset(own + wide, 0, sizeof(float) * (size_t)(padded - wide));
      for (int h = 0; h < m_.num_heads; h++) {
        float best = 0, total = 0;
        for (int64_t s = first_seen(op, span.start + token - span.first) / SPLIT; s < span.num_splits; s++) {
          const int64_t at = place(span, s, h / group) + (token - span.first) * group + h % group;
          kernels_.merge(&best, &total, desk.values.get(), part_best_.get()[at], part_total_.get()[at],
                         part_values_.get() + at * width_, width_);
        }
        write_head(h, desk.values.get(), total, own);
      }
      row = own;
    }
    buffer(op.to, me, few_).put(kernels_, row, token, 0, padded);
  }

  TmModel m_;
  std::vector<TmOp> ops_;
  const Kernels& kernels_;
  std::unique_ptr<Threads> threads_;
  std::vector<std::vector<std::vector<int>>> shares_;  // op, thread → units
  int forms_[NUM_BUFFERS] = {}, widths_[NUM_BUFFERS] = {};
  int width_ = 0;

  const TmStep* step_ = nullptr;
  bool few_ = true, enough_ = false;  // rows few enough; splits enough
  int chosen_ = 0, num_experts_ = 0;
  Room<float> router_, parts_;                        // logits of the router; each pair's result
  std::vector<int> expert_first_, next_pair_;  // pairs [first, next) of an expert
  std::vector<int> picks_, pair_of_;           // experts and pairs by token and choice
  std::vector<int> pair_token_;
  std::vector<float> weight_of_, chances_;     // of token and choice; of one token's experts
  Room<float> x_, q_, attended_, part_best_, part_total_, part_values_;
  Buffer shared_[NUM_BUFFERS];
  std::vector<Desk> desks_;
  std::vector<Span> spans_;
  std::vector<int> owner_;
  std::vector<std::atomic<int>> next_;
};

void explain(char* why, int bytes, const char* reason) {
  if (why && bytes > 0) std::snprintf(why, (size_t)bytes, "%s", reason);
}

}  // namespace

int64_t tile_bytes(int scheme, int k) {
  const int64_t padded = rounded(k, PAD);
  switch (scheme) {
    case FLOAT32: return padded * TILE * 4;
    case BFLOAT16: return padded * TILE * 2;
    case Q8: return padded / PAD * (64 + 1024);
    case Q4: return padded / PAD * (64 + 512);
    case Q4_MIN: return padded / PAD * (128 + 512);
    default: return padded / PAD * (256 + 512);
  }
}

int64_t attend_scratch_bytes(int head_dim, int64_t rows) {
  return rows * (SPLIT * 4 + rounded(4 * (head_dim + 16), 64)) + rounded(16 * 4 * (head_dim + 1), 64) + 16 * 4 * (head_dim + 16);
}

extern "C" {

int tm_abi(void) { return TM_ABI; }

const char* tm_best_build(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16"))
    return "avx512";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) return "avx2";
#endif
  return "portable";
}

void* tm_make(const TmModel* model, char* why, int why_bytes) {
  try {
    return new Model(*model);
  } catch (const std::exception& error) {
    explain(why, why_bytes, error.what());
    return nullptr;
  }
}

int tm_run(void* model, const TmStep* step, char* why, int why_bytes) {
  try {
    ((Model*)model)->run(*step);
    return 0;
  } catch (const std::exception& error) {
    explain(why, why_bytes, error.what());
    return 1;
  }
}

void tm_free(void* model) { delete (Model*)model; }

int64_t tm_tile_bytes(int scheme, int inputs) { return tile_bytes(scheme, inputs); }
}
