// Before the threads start: which thread does what, and room for it.
#include "model.h"

#include <stdexcept>
#include <string>

namespace {

const Kernels* const BUILDS[] = {
#if defined(TM_WITH_AMX)
    &kernels_amx,
#endif
#if defined(TM_WITH_AVX512)
    &kernels_avx512,
#endif
#if defined(TM_WITH_AVX2)
    &kernels_avx2,
#endif
    &kernels_portable};

}  // namespace

Model::Model(const TmModel& m) : m_(m), ops_(m.ops, m.ops + m.num_ops), kernels_(find_build(m.build)) {
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
  following_.resize(ops_.size() + 1);
  for (size_t i = ops_.size(); i-- > 0;) following_[i] = ops_[i].kind == TM_ATTEND ? &ops_[i] : following_[i + 1];
  stretches_.resize((size_t)m.num_threads), task_shares_.resize((size_t)m.num_threads);
  next_ = std::vector<std::atomic<int>>(ops_.size());
  left_ = std::vector<std::atomic<uint64_t>>(ops_.size() * (size_t)m.num_threads);
}

const Kernels& Model::find_build(const char* wanted) {
  const std::string best = tm_best_build(), name = *wanted ? wanted : best;
  bool runs = false;
  for (const Kernels* build : BUILDS) {
    runs |= best == build->name;  // and so do those behind it
    if (name == build->name && runs) return *build;
  }
  throw std::runtime_error("there is no build " + name + " for this processor");
}

void Model::prepare(const TmStep& step) {
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
    desk.tile.at_least(std::max<int64_t>(MADE, TOKEN_BLOCK * rounded(width_, GROUP))), desk.gate.at_least(MADE);
    const int64_t rows = std::max(QUERY_TILE * (m_.num_heads / m_.num_kv_heads), FEW_QUERIES * m_.num_heads);
    desk.values.at_least(2 * rows * width_), desk.best.at_least(2 * rows), desk.total.at_least(2 * rows);
    desk.attend.at_least(attend_scratch_bytes(m_.head_dim, rows));
    desk.q.resize((size_t)rows), desk.first.resize((size_t)rows), desk.last.resize((size_t)rows);
  }
  place_spans(step);
  list_tasks();
  settle_tasks();
  for (size_t i = 0; i < ops_.size(); i++) {
    next_[i].store(0, std::memory_order_relaxed);
    const bool attends = ops_[i].kind == TM_ATTEND;
    const auto& shares = attends ? task_shares_ : shares_[i];
    const int64_t rounds = ops_[i].kind == TM_LINEAR ? num_rounds(ops_[i]) : 1;
    for (size_t thread = 0; thread < shares.size(); thread++)
      left_[thread * ops_.size() + i].store(shares[thread].size() * (uint64_t)rounds << 32, std::memory_order_relaxed);
  }
}

void Model::make(Buffer& buffer, int number, int64_t tokens) {
  buffer.k = widths_[number], buffer.forms = forms_[number];
  if (buffer.k) buffer.make(tokens);
}

// Short spans are attended to split by split, by any thread, and folded afterwards; in long ones a thread folds as it goes.
void Model::place_spans(const TmStep& step) {
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

// The longest first. Where there are splits enough for all threads, a task takes all heads of one: the cache is read in one
// stream.
void Model::list_tasks() {
  tasks_.clear();
  for (size_t i = 0; i < spans_.size(); i++) {
    const Span& span = spans_[i];
    const int each = enough_ && span.count <= FEW_QUERIES ? m_.num_kv_heads : 1;
    for (int64_t piece = span.partials >= 0 ? span.num_splits : (span.count + QUERY_TILE - 1) / QUERY_TILE; piece-- > 0;)
      for (int head = 0; head < m_.num_kv_heads; head += each) tasks_.push_back({(int)i, head, each, piece});
  }
}

// While all sequences decode and there are many, everybody knows beforehand what it will read of the cache, and fetches it during
// the products before: those are busy with arithmetic while memory idles.
void Model::settle_tasks() {
  for (auto& share : task_shares_) share.clear();
  for (auto& stretches : stretches_) stretches.clear();
  settled_ = few_ && enough_ && step_->num_tokens >= 8;
  for (const Span& span : spans_) settled_ &= span.count <= FEW_QUERIES;
  if (!settled_) return;
  std::vector<int64_t> loads((size_t)m_.num_threads, 0);
  for (size_t task = 0; task < tasks_.size(); task++) {
    const size_t least = (size_t)(std::min_element(loads.begin(), loads.end()) - loads.begin());
    const Span& span = spans_[(size_t)tasks_[task].span];
    const int64_t begin = tasks_[task].piece * SPLIT, end = std::min(begin + SPLIT, span.start + span.count);
    task_shares_[least].push_back((int)task), loads[least] += end - begin;
    std::vector<Stretch>& stretches = stretches_[least];
    if (span.base >= 0) {
      stretches.push_back({span.base + begin, end - begin});
      continue;
    }
    for (int64_t p = begin; p < end; p++) {
      if (p > begin && span.slots[p] == span.slots[p - 1] + 1)
        stretches.back().count++;
      else
        stretches.push_back({span.slots[p], 1});
    }
  }
}

// Units per thread, the heaviest first to whoever has least; each thread's in the order of memory.
std::vector<std::vector<int>> Model::divide(const TmOp& op) const {
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
