// The walk over the operations, norms, and the residual stream as it is.
#include "step/worker.h"

void Worker::run() {
  const uint64_t mode = kernels_.begin_step();
  start_prefetch(model_.next_attention[0]);
  for (size_t i = 0; i < model_.ops.size() && !ranks_.is_lost(); i++) perform(i);
  kernels_.end_step(mode);
}

void Worker::perform(size_t number) {
  const TmOp& op = model_.ops[number];
  switch (op.kind) {
    case TM_EMBED: embed(op), ranks_.meet(); break;
    case TM_NORM: op.epilogue == TM_ADD ? add_normed(op) : norm(op); break;
    case TM_COPY: norm(op); break;
    case TM_HEADS: store_heads(op), ranks_.meet(); break;
    case TM_LINEAR: linear(op, number), ranks_.meet(); break;
    case TM_ATTEND: attend(op, number); break;
    case TM_CHOOSE: choose_experts(op, number); break;
    case TM_COMBINE: combine_experts(op), ranks_.meet(); break;
    case TM_CONVOLVE: convolve(op), ranks_.meet(); break;
    case TM_RECUR: recur(op, number), ranks_.meet(); break;
    case TM_GATE: gate(op); break;
  }
}

// The norm before the head takes only the rows whose logits are computed, and writes them to the front of the buffer.
void Worker::norm(const TmOp& op) {
  const TmStep& step = *plan_.step;
  const bool before_head = op.epilogue == TM_LOGITS;
  const int hidden = model_.shape.hidden, padded = (int)model_.hidden_stride();
  float* row = scratch_.row.get();
  memset(row + hidden, 0, sizeof(float) * (size_t)(padded - hidden));
  const auto [from, to] = rows_of(before_head ? step.num_rows : step.num_tokens);
  for (int t = from; t < to; t++) {
    const int64_t token = before_head && step.rows ? step.rows[t] : t;
    if (op.kind == TM_COPY)
      memcpy(row, residual(token), sizeof(float) * (size_t)hidden);
    else
      kernels_.norm(residual(token), row, hidden, op.weight, op.bias, op.eps, op.centred);
    input(op.to).store(kernels_, row, 0, t, 1, 0, padded, padded);
  }
  meet_unless_small();
}

// The norm after a block: it takes stored products, and is added to the residual stream, each row once, also in a small step.
void Worker::add_normed(const TmOp& op) {
  const int hidden = model_.shape.hidden;
  const auto [from, to] = share(plan_.step->num_tokens);
  float* row = scratch_.row.get();
  memset(row + hidden, 0, sizeof(float) * (size_t)(model_.hidden_stride() - hidden));
  for (int t = from; t < to; t++) {
    memcpy(row, stored(t), sizeof(float) * (size_t)hidden);
    kernels_.norm(row, row, hidden, op.weight, op.bias, op.eps, op.centred);
    add_scaled(op, t, 0, row, hidden);
  }
  ranks_.meet();
}

// Adds `count` numbers, times the operation's scale, to the residual stream of a token from column `first` on.
void Worker::add_scaled(const TmOp& op, int token, int first, float* values, int count) {
  if (op.scale != 1)
    for (int i = 0; i < count; i++) values[i] *= op.scale;
  kernels_.add(residual(token) + first, values, count);
}
