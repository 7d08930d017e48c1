// The walk over the operations, and norms.
#include "step/worker.h"

void Worker::run() {
  kernels_.begin_step();
  start_prefetch(model_.next_attention[0]);
  for (size_t i = 0; i < model_.ops.size(); i++) perform(i);
  kernels_.end_step();
}

void Worker::perform(size_t number) {
  const TmOp& op = model_.ops[number];
  switch (op.kind) {
    case TM_EMBED: embed(op), threads_.meet(); break;
    case TM_NORM: norm(op); break;
    case TM_LINEAR: linear(op, number), threads_.meet(); break;
    case TM_ATTEND: attend(op, number); break;
    case TM_CHOOSE: choose_experts(op); break;
    case TM_COMBINE: combine_experts(op), threads_.meet(); break;
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
    kernels_.norm(residual(token), row, hidden, op.weight, op.bias, op.eps, op.centred);
    input(op.to).store(kernels_, row, 0, t, 1, 0, padded, padded);
  }
  meet_unless_small();
}
