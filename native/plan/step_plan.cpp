#include "plan/step_plan.h"

namespace {

constexpr int MIN_PREFETCH_TOKENS = 8;  // of a step in which products leave memory idle

int64_t num_splits(const TmSpan& span) { return (span.start + span.count + SPLIT - 1) / SPLIT; }

}  // namespace

void StepPlan::make(const Model& model, const TmStep& next_step, const int64_t* rows) {
  step = &next_step, logit_rows = rows;
  small = step->num_tokens <= SMALL_STEP;
  place_spans(model);
  note_adapters(model);
  tasks.resize(model.kv_heads.size());
  for (size_t i = 0; i < tasks.size(); i++) list_tasks(model.kv_heads[i], tasks[i]);
  assign_tasks(model);
}

void StepPlan::place_spans(const Model& model) {
  spans.clear(), span_of.assign((size_t)step->num_tokens, 0);
  num_partials = 0;
  int64_t splits = 0;
  for (int i = 0; i < step->num_spans; i++) {
    Span span{step->spans[i], -1, num_splits(step->spans[i])};
    if (span.count < QUERY_TILE) {
      span.partials = num_partials;
      num_partials += span.count * model.max_heads * span.num_splits;
    }
    splits += span.num_splits;
    spans.push_back(span);
    std::fill_n(span_of.begin() + span.first, span.count, i);
  }
  many_splits_ = splits >= 2 * model.num_threads();
}

void StepPlan::note_adapters(const Model& model) {
  lowered_stride = 0, adapted_rows.clear();
  const auto rows_with = [&](const TmAdapter* adapter) {
    return std::find_if(adapted_rows.begin(), adapted_rows.end(), [=](const AdaptedRows& rows) { return rows.adapter == adapter; });
  };
  for (const Span& span : spans) {
    if (!span.adapter) continue;
    auto own = rows_with(span.adapter);
    if (own == adapted_rows.end()) own = adapted_rows.insert(own, {span.adapter, {}, {}});
    for (int64_t t = span.first; t < span.first + span.count; t++) own->tokens.push_back((int)t);
  }
  adapted = !adapted_rows.empty();
  if (!adapted) return;
  changed.assign(model.ops.size(), 0);
  for (const AdaptedRows& rows : adapted_rows) {
    const TmAdapter& adapter = *rows.adapter;
    lowered_stride = std::max<int64_t>(lowered_stride, rounded(adapter.max_lowered, TILE));
    for (size_t op = 0; op < changed.size(); op++)
      changed[op] |= adapter.firsts[model.first_matrix[op + 1]] > adapter.firsts[model.first_matrix[op]];
  }
  for (int row = 0; row < step->num_rows; row++) {
    const TmAdapter* adapter = adapter_of(step->rows ? (int)step->rows[row] : row);
    if (adapter) rows_with(adapter)->logits.push_back(row);
  }
}

// The tasks of a span that take longest come first. Where there are many splits, a task takes all kv heads of one, so that the
// cache is read in one stream.
void StepPlan::list_tasks(int kv_heads, std::vector<AttentionTask>& list) const {
  list.clear();
  for (size_t i = 0; i < spans.size(); i++) {
    const Span& span = spans[i];
    const int each = many_splits_ && span.count <= MAX_DECODE_TOKENS ? kv_heads : 1;
    const int64_t count = span.partials >= 0 ? span.num_splits : (span.count + QUERY_TILE - 1) / QUERY_TILE;
    for (int64_t index = count; index-- > 0;)
      for (int head = 0; head < kv_heads; head += each) list.push_back({(int)i, head, each, index});
  }
}

// In a step where at least MIN_PREFETCH_TOKENS sequences decode, tasks are assigned to threads beforehand. Each thread then
// knows its rows of the cache and prefetches them during the products before, which are bound by arithmetic there.
void StepPlan::assign_tasks(const Model& model) {
  const size_t num_threads = (size_t)model.num_threads();
  tasks_of.resize(num_threads), slots_of.resize(num_threads);
  for (auto& list : tasks_of) list.clear();
  for (auto& list : slots_of) list.clear();
  tasks_assigned = small && !tasks.empty() && many_splits_ && step->num_tokens >= MIN_PREFETCH_TOKENS;
  for (const Span& span : spans) tasks_assigned &= span.count <= MAX_DECODE_TOKENS;
  if (!tasks_assigned) return;
  std::vector<int64_t> loads(num_threads, 0);
  for (size_t number = 0; number < tasks[0].size(); number++) {
    const size_t thread = (size_t)(std::min_element(loads.begin(), loads.end()) - loads.begin());
    const AttentionTask& task = tasks[0][number];
    const Span& span = spans[(size_t)task.span];
    loads[thread] += std::min<int64_t>(SPLIT, span.start + span.count - task.index * SPLIT);
    assign(task, (int)number, thread);
  }
}

void StepPlan::assign(const AttentionTask& task, int number, size_t thread) {
  const Span& span = spans[(size_t)task.span];
  const int64_t begin = task.index * SPLIT, end = std::min(begin + SPLIT, span.start + span.count);
  std::vector<SlotRange>& ranges = slots_of[thread];
  tasks_of[thread].push_back(number);
  if (span.base >= 0) {
    ranges.push_back({span.base + begin, end - begin});
    return;
  }
  for (int64_t p = begin; p < end; p++) {
    if (p > begin && span.slots[p] == span.slots[p - 1] + 1)
      ranges.back().count++;
    else
      ranges.push_back({span.slots[p], 1});
  }
}
