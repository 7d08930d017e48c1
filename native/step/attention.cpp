// Attention over the cache: tasks that threads take, and the merge of partial softmaxes in the order of the splits.
#include "step/worker.h"

void Worker::attend(const TmOp& op, size_t number) {
  while (const AttentionTask* task = next_task(op, number)) {
    const Span& span = plan_.spans[(size_t)task->span];
    if (span.partials < 0)
      attend_tile(op, span, task->index * QUERY_TILE, task->head);
    else if ((task->index + 1) * SPLIT > Model::first_visible(op, span.start))
      attend_split(op, span, *task);
  }
  ranks_.meet();
  if (op.by_head) begin_heads(op, number);
  const int tokens = plan_.step->num_tokens;
  const auto [from, to] = op.by_head ? share(tokens) : rows_of(tokens);
  for (int t = from; t < to; t++) store_attended(op, t);
  if (op.by_head) ranks_.meet();
  else meet_unless_small();
  start_prefetch(model_.next_attention[number + 1]);
}

const AttentionTask* Worker::next_task(const TmOp& op, size_t number) {
  const std::vector<AttentionTask>& tasks = plan_.tasks_for(model_, op);
  if (plan_.tasks_assigned) {
    const WorkItem item = queues_.take(number, own_thread_);
    return item.owner < 0 ? nullptr : &tasks[(size_t)plan_.tasks_of[(size_t)(first_thread_ + item.owner)][item.index]];
  }
  const size_t at = queues_.take_shared(number);
  return at < tasks.size() ? &tasks[at] : nullptr;
}

AttentionJob Worker::job_for(const TmOp& op, const Span& span, int head, int64_t begin, int64_t end) const {
  AttentionJob job{};
  job.k = op.k_rows, job.v = op.v_rows, job.k_scales = op.k_scales, job.v_scales = op.v_scales;
  job.cache_format = model_.shape.cache_format, job.head_dim = op.head_dim, job.value_dim = op.value_dim;
  job.head = head, job.num_heads = 1, job.num_kv_heads = op.num_kv_heads;
  job.base = span.base, job.slots = span.slots;
  job.begin = begin, job.end = end, job.scale = op.scale, job.softcap = op.softcap;
  job.scratch = scratch_.attention.kernel.get();
  return job;
}

// One split of a short span: all its queries, for the kv heads of the task.
void Worker::attend_split(const TmOp& op, const Span& span, const AttentionTask& task) {
  const int64_t begin = task.index * SPLIT, at = plan_.partial_at(model_, span, task.index, task.head * model_.group(op));
  AttentionJob job = job_for(op, span, task.head, begin, std::min(begin + SPLIT, span.start + span.count));
  AttentionPartials& partials = memory_.partials;
  job.num_heads = task.num_heads;
  job.max_score = partials.max_score.get() + at, job.exp_sum = partials.exp_sum.get() + at;
  job.value_sum = partials.value_sum.get() + at * Model::value_width(op);
  attend_queries(op, span, 0, span.count, job);
}

// The queries of the span's tokens [from, from + count) that belong to the job's kv heads.
void Worker::attend_queries(const TmOp& op, const Span& span, int64_t from, int64_t count, AttentionJob& job) {
  const int group = model_.group(op), width = Model::head_width(op);
  AttentionScratch& scratch = scratch_.attention;
  const int64_t rows = count * group;
  for (int64_t r = 0; r < rows; r++) {
    const int64_t i = from + r / group, position = span.start + i;
    const int64_t first_head = (span.first + i) * op.heads + r % group;
    for (int h = 0; h < job.num_heads; h++) {
      scratch.queries[(size_t)(h * rows + r)] = memory_.queries.get() + (first_head + (job.head + h) * group) * width;
      if (op.distance_bias)
        scratch.biases[(size_t)(h * rows + r)] =
            op.distance_bias + ((job.head + h) * group + r % group) * model_.bias_stride() + model_.shape.num_positions - 1 - position + job.begin;
    }
    scratch.visible_begin[(size_t)r] = Model::first_visible(op, position), scratch.visible_end[(size_t)r] = Model::end_of_visible(op, position, span.start + span.count);
  }
  job.num_rows = (int)rows, job.q = scratch.queries.data(), job.biases = op.distance_bias ? scratch.biases.data() : nullptr;
  job.visible_begin = scratch.visible_begin.data(), job.visible_end = scratch.visible_end.data();
  kernels_.attend(job);
}

// A tile of QUERY_TILE tokens of a long span, one kv head: split after split, merged as they are computed.
void Worker::attend_tile(const TmOp& op, const Span& span, int64_t from, int head) {
  const int group = model_.group(op), width = Model::value_width(op);
  const int64_t count = std::min<int64_t>(QUERY_TILE, span.count - from), rows = count * group;
  const int64_t first = Model::first_visible(op, span.start + from), end = Model::end_of_visible(op, span.start + from + count - 1, span.start + span.count);
  AttentionScratch& scratch = scratch_.attention;
  float *max_score = scratch.max_score.get(), *exp_sum = scratch.exp_sum.get(), *value_sum = scratch.value_sum.get();
  std::fill_n(exp_sum, rows, 0.0f);
  for (int64_t begin = first / SPLIT * SPLIT; begin < end; begin += SPLIT) {
    AttentionJob job = job_for(op, span, head, begin, std::min(begin + SPLIT, end));
    job.max_score = max_score + rows, job.exp_sum = exp_sum + rows, job.value_sum = value_sum + rows * width;
    attend_queries(op, span, from, count, job);
    for (int64_t r = 0; r < rows; r++)
      kernels_.merge(max_score + r, exp_sum + r, value_sum + r * width, job.max_score[r], job.exp_sum[r], job.value_sum + r * width,
                     width);
  }
  for (int64_t r = 0; r < rows; r++)
    write_head(op, head * group + (int)(r % group), value_sum + r * width, max_score[r], exp_sum[r],
               attended(span.first + from + r / group));
}

// A sink is one more score, whose value is zero.
void Worker::write_head(const TmOp& op, int head, float* value_sum, float max_score, float exp_sum, float* row) const {
  const int dim = op.value_dim;
  if (op.sinks)
    kernels_.merge(&max_score, &exp_sum, value_sum, op.sinks[head], 1, scratch_.zeros.get(), Model::value_width(op));
  for (int i = 0; i < dim; i++) row[head * dim + i] = value_sum[i] / exp_sum;
}

// All heads of one token of a short span.
void Worker::merge_splits(const TmOp& op, const Span& span, int token, float* row) {
  const int group = model_.group(op), width = Model::value_width(op);
  const AttentionPartials& partials = memory_.partials;
  float* value_sum = scratch_.attention.value_sum.get();
  const int64_t i = token - span.first, first_split = Model::first_visible(op, span.start + i) / SPLIT;
  for (int h = 0; h < op.heads; h++) {
    float max_score = 0, exp_sum = 0;
    for (int64_t split = first_split; split < span.num_splits; split++) {
      const int64_t at = plan_.partial_at(model_, span, split, h - h % group) + i * group + h % group;
      kernels_.merge(&max_score, &exp_sum, value_sum, partials.max_score.get()[at], partials.exp_sum.get()[at],
                     partials.value_sum.get() + at * width, width);
    }
    write_head(op, h, value_sum, max_score, exp_sum, row);
  }
}

// The attention results of a token, in the formats that the next linear reads.
void Worker::store_attended(const TmOp& op, int token) {
  const Span& span = plan_.spans[(size_t)plan_.span_of[(size_t)token]];
  const int64_t width = model_.attended_width(op), padded = rounded(width, PAD);
  const bool is_whole = span.partials < 0 && padded == width && !op.gated;
  float* row = is_whole ? attended(token) : scratch_.row.get();  // padded in a copy: in a small step every thread stores all tokens
  if (span.partials >= 0) merge_splits(op, span, token, row);
  else if (!is_whole) memcpy(row, attended(token), sizeof(float) * (size_t)width);
  memset(row + width, 0, sizeof(float) * (size_t)(padded - width));
  if (op.gated) {
    float* gates = scratch_.gates.get();
    const float* numbers = stored(token) + op.gate;
    const int64_t each = width / op.columns;
    if (each == 1) memcpy(gates, numbers, sizeof(float) * (size_t)width);
    else for (int64_t i = 0; i < op.columns; i++) std::fill_n(gates + i * each, each, numbers[i]);
    memset(gates + width, 0, sizeof(float) * (size_t)(padded - width));
    kernels_.activate(gates, row, (int)padded, op.activation, 0, 0);
    row = gates;
  }
  if (!op.by_head) return input(op.to).store(kernels_, row, 0, token, 1, 0, (int)padded, (int)padded);
  for (int h = 0; h < op.heads; h++) gather_head(op, h, token, row + h * op.value_dim, op.by_head);
}
