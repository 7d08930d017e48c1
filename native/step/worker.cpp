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
    case TM_NORM: perform_norm(op); break;
    case TM_COPY: norm(op); break;
    case TM_HEADS: store_heads(op), ranks_.meet(); break;
    case TM_LINEAR: linear(op, number), ranks_.meet(); break;
    case TM_ATTEND: attend(op, number); break;
    case TM_CHOOSE: choose_experts(op, number); break;
    case TM_COMBINE: combine_experts(op), ranks_.meet(); break;
    case TM_CONVOLVE: convolve(op), ranks_.meet(); break;
    case TM_RECUR: recur(op, number), ranks_.meet(); break;
    case TM_GATE: gate(op); break;
    case TM_INPUTS: layer_inputs(op), ranks_.meet(); break;
    case TM_LATENT_ROWS: latent_rows(op, number), ranks_.meet(); break;
    case TM_EXPAND: expand_streams(op), ranks_.meet(); break;
    case TM_PREDICT: predict_streams(op), ranks_.meet(); break;
    case TM_BESIDE: add_beside(op), ranks_.meet(); break;
    case TM_CORRECT: correct_streams(op), ranks_.meet(); break;
    case TM_SPREAD: spread_streams(op), ranks_.meet(); break;
    case TM_JOIN: join_streams(op), ranks_.meet(); break;
    case TM_PAIR: pair(op); break;
    case TM_REPLACE: replace(op), ranks_.meet(); break;
  }
}

void Worker::perform_norm(const TmOp& op) {
  switch (op.epilogue) {
    case TM_ADD: return add_normed(op);
    case TM_STORE: return norm_stored(op);
    case TM_IN_PLACE: return norm_in_place(op);
    case TM_TO_BUFFER: return op.outputs ? norm_columns(op) : norm(op);
    case TM_LOGITS: return keep_hidden(op), norm(op);
    default: return norm(op);
  }
}

// A row of a token, normed with the weight and bias of the operation.
void Worker::norm_row(const TmOp& op, int64_t token, const float* x, float* out, int count) const {
  kernels_.norm(x, out, count, own(op.weight, token), own(op.bias, token), op.eps, op.centred);
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
      memcpy(row, op.stream ? stream(token, op.stream) : residual(token), sizeof(float) * (size_t)hidden);
    else
      norm_row(op, token, residual(token), row, hidden);
    if (op.scale != 1)
      for (int i = 0; i < hidden; i++) row[i] *= op.scale;
    input(op.to).store(kernels_, row, 0, t, 1, 0, padded, padded);
  }
  meet_unless_small();
}

// The rows that the head would read, of all tokens. Rank 0 alone has the step's memory for them.
void Worker::keep_hidden(const TmOp& op) {
  const TmStep& step = *plan_.step;
  if (!step.hidden || ranks_.rank()) return;
  const int hidden = model_.shape.hidden;
  float* row = scratch_.row.get();
  memset(row + hidden, 0, sizeof(float) * (size_t)(model_.hidden_stride() - hidden));
  const auto [from, to] = share_of(step.num_tokens, own_thread_, threads_.count());
  for (int t = from; t < to; t++) {
    norm_row(op, t, residual(t), row, hidden);
    memcpy(step.hidden + (step.places ? step.places[t] : t) * hidden, row, sizeof(float) * (size_t)hidden);
  }
}

// A token's embedding and its given row, both normed, as one row.
void Worker::pair(const TmOp& op) {
  const TmStep& step = *plan_.step;
  const int hidden = model_.shape.hidden, width = op.weight ? 2 * hidden : op.inputs, padded = (int)rounded(width, PAD);
  float* both = scratch_.pair.get();
  std::fill(both + width, both + padded, 0.0f);
  const auto [from, to] = rows_of(step.num_tokens);
  for (int t = from; t < to; t++) {
    const int64_t place = step.places ? step.places[t] : t;
    if (op.weight) {
      memcpy(both, normed_row(residual(t), t, op.weight, op), sizeof(float) * (size_t)hidden);
      memcpy(both + hidden, normed_row(step.given + place * hidden, t, op.input_norm, op), sizeof(float) * (size_t)hidden);
    } else {
      memcpy(both, step.given + place * width, sizeof(float) * (size_t)width);
    }
    input(op.to).store(kernels_, both, 0, t, 1, 0, padded, padded);
  }
  meet_unless_small();
}

void Worker::replace(const TmOp& op) {
  const auto [from, to] = share(plan_.step->num_tokens);
  for (int t = from; t < to; t++) memcpy(residual(t), stored(t) + op.column, sizeof(float) * (size_t)model_.shape.hidden);
}

// The norm after a block: it takes stored products, and is added to the residual stream, each row once, also in a small step.
void Worker::add_normed(const TmOp& op) {
  const int hidden = model_.shape.hidden;
  const auto [from, to] = share(plan_.step->num_tokens);
  float* row = scratch_.row.get();
  memset(row + hidden, 0, sizeof(float) * (size_t)(model_.hidden_stride() - hidden));
  for (int t = from; t < to; t++) {
    memcpy(row, stored(t) + op.column, sizeof(float) * (size_t)hidden);
    norm_row(op, t, row, row, hidden);
    add_scaled(op, t, 0, row, hidden);
  }
  ranks_.meet();
}

void Worker::norm_stored(const TmOp& op) {
  const int hidden = model_.shape.hidden;
  const auto [from, to] = share(plan_.step->num_tokens);
  float* row = scratch_.row.get();
  memset(row + hidden, 0, sizeof(float) * (size_t)(model_.hidden_stride() - hidden));
  for (int t = from; t < to; t++) {
    float* results = stored(t) + op.column;
    memcpy(row, results, sizeof(float) * (size_t)hidden);
    norm_row(op, t, row, row, hidden);
    for (int i = 0; i < hidden; i++) results[i] = op.gated ? row[i] + stored(t)[op.gate + i] : row[i];
  }
  ranks_.meet();
}

void Worker::norm_in_place(const TmOp& op) {
  const int hidden = model_.shape.hidden;
  const auto [from, to] = share(plan_.step->num_tokens);
  for (int t = from; t < to; t++) norm_row(op, t, residual(t), residual(t), hidden);
  ranks_.meet();
}

// Stored columns, normed, as the input of a linear.
void Worker::norm_columns(const TmOp& op) {
  const int width = op.outputs, padded = (int)rounded(width, PAD);
  const auto [from, to] = share(plan_.step->num_tokens);
  float* row = scratch_.row.get();
  std::fill(row + width, row + padded, 0.0f);
  for (int t = from; t < to; t++) {
    memcpy(row, stored(t) + op.column, sizeof(float) * (size_t)width);
    norm_row(op, t, row, row, width);
    memory_.buffers[op.to].store(kernels_, row, 0, t, 1, 0, padded, padded);
  }
  ranks_.meet();
}

// A row of the table has the inputs of all layers, one block each. Rank 0 alone has the table.
void Worker::layer_inputs(const TmOp& op) {
  if (!op.table) return;
  const TmStep& step = *plan_.step;
  const int width = op.outputs, block = op.block;
  const auto [from, to] = share_of(step.num_tokens, own_thread_, threads_.count());
  float* row = scratch_.head.get();
  for (int t = from; t < to; t++) {
    const float* products = stored(t) + op.column;
    const int64_t token = step.tokens[t] < op.rows ? step.tokens[t] : 0;
    const float* decoded = op.coded ? decode_inputs(op, token) : nullptr;
    float* results = inputs(t);
    for (int first = 0; first < width; first += block) {
      for (int i = 0; i < block; i++) row[i] = products[first + i] * op.act_a;
      std::fill(row + block, row + rounded(block, TILE), 0.0f);
      kernels_.norm(row, row, block, own(op.weight, t), nullptr, op.eps, 0);
      for (int i = first; i < first + block; i++) {
        const float number = decoded ? decoded[i] : table_entry(op.table, op.scheme, token * width + i);
        results[i] = (row[i - first] + number * op.scale) * op.act_b;
      }
    }
  }
}

// Adds `count` numbers, times the operation's scale, to the residual stream of a token from column `first` on.
void Worker::add_scaled(const TmOp& op, int token, int first, float* values, int count) {
  if (op.scale != 1)
    for (int i = 0; i < count; i++) values[i] *= op.scale;
  float* sums = residual(token) + first;
  kernels_.add(sums, values, count);
  if (op.rescale != 1)
    for (int i = 0; i < count; i++) sums[i] *= op.rescale;
}
