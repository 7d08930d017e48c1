// Attention over the cache: tasks for the threads, splits of a sequence folded in one order.
#include "model.h"

void Model::attend(const TmOp& op, size_t number, int me) {
  const auto next = [&]() -> const Task* {
    if (settled_) {
      const Taken taken = take(number, me);
      return taken.whose < 0 ? nullptr : &tasks_[(size_t)task_shares_[(size_t)taken.whose][taken.at]];
    }
    const size_t at = (size_t)next_[number].fetch_add(1, std::memory_order_relaxed);  // whoever is free takes the next
    return at < tasks_.size() ? &tasks_[at] : nullptr;
  };
  while (const Task* found = next()) {
    const Task& task = *found;
    const Span& span = spans_[(size_t)task.span];
    if (span.partials < 0)
      attend_queries(op, span, task.piece * QUERY_TILE, task.head, me);
    else if ((task.piece + 1) * SPLIT > first_seen(op, span.start))
      attend_split(op, span, task, me);
  }
  threads_->meet();
  const auto [from, to] = few_ ? std::pair<int, int>(0, step_->num_tokens) : share(step_->num_tokens, me);
  for (int t = from; t < to; t++) hand_over(op, t, me);
  if (!few_) threads_->meet();
  expect(following_[number + 1], me);
}

Attend Model::job_for(const TmOp& op, const Span& span, int head, int64_t begin, int64_t end, Desk& desk) const {
  Attend job{};
  job.k = op.k_rows, job.v = op.v_rows, job.k_scales = op.k_scales, job.v_scales = op.v_scales;
  job.cache_form = m_.cache_form, job.head_dim = m_.head_dim, job.head = head, job.num_heads = 1, job.num_kv_heads = m_.num_kv_heads;
  job.base = span.base, job.slots = span.slots;
  job.begin = begin, job.end = end, job.scale = op.scale, job.softcap = op.softcap;
  job.scratch = desk.attend.get();
  return job;
}

// All rows of a short span and some kv heads against one split.
void Model::attend_split(const TmOp& op, const Span& span, const Task& task, int me) {
  const int64_t begin = task.piece * SPLIT, at = place(span, task.piece, task.head);
  Attend job = job_for(op, span, task.head, begin, std::min(begin + SPLIT, span.start + span.count), desks_[(size_t)me]);
  job.num_heads = task.num_heads;
  job.best = part_best_.get() + at, job.total = part_total_.get() + at, job.values = part_values_.get() + at * width_;
  attend_rows(op, span, 0, span.count, job, me);
}

// The rows of each kv head's group at the positions [from, from + count) of a span.
void Model::attend_rows(const TmOp& op, const Span& span, int64_t from, int64_t count, Attend& job, int me) {
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
void Model::attend_queries(const TmOp& op, const Span& span, int64_t from, int head, int me) {
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

void Model::write_head(int head, const float* values, float total, float* row) const {
  for (int i = 0; i < m_.head_dim; i++) row[head * m_.head_dim + i] = values[i] / total;
}

// Fold what is in splits, then into the form that the next linear reads.
void Model::hand_over(const TmOp& op, int token, int me) {
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
  buffer(op.to, me, few_).put(kernels_, row, 0, token, 1, 0, padded);
}
