// Layers that keep a state: convolutions by channels, the recurrence by slices of heads, and gates by tokens. The tokens of one
// sequence pass through a block of channels, or a slice, in order; sequences, blocks and slices do not depend on each other.
#include "step/worker.h"

// Every thread has blocks of channels, and takes them for all spans.
void Worker::convolve(const TmOp& op) {
  const auto [from, to] = share((op.outputs + op.block - 1) / op.block);
  for (const Span& span : plan_.spans)
    for (int block = from; block < to; block++) convolve_block(op, span, block);
}

// The last inputs are stored before results take their places. The slot may be the one in which the span begins.
void Worker::convolve_block(const TmOp& op, const Span& span, int block) {
  const int first = block * op.block, channels = std::min(op.block, op.outputs - first), taps = op.taps - 1;
  const int64_t stride = model_.stored_stride, slot_size = (int64_t)taps * op.outputs;
  const size_t bytes = sizeof(float) * (size_t)channels;
  float *x = stored(span.first) + op.column + first, *before = scratch_.before.get();
  if (op.gated)
    for (int64_t t = 0; t < span.count; t++) {
      const float* factors = stored(span.first + t) + op.gate + first;
      for (int i = 0; i < channels; i++) x[t * stride + i] *= factors[i];
    }
  for (int tap = 0; tap < taps; tap++) {
    if (span.state < 0) memset(before + tap * channels, 0, bytes);
    else memcpy(before + tap * channels, op.state + span.state * slot_size + tap * op.outputs + first, bytes);
  }
  const TmSave* saves = plan_.step->saves + span.first_save;
  for (const TmSave* save = saves; save < saves + span.num_saves; save++)
    for (int tap = 0; tap < taps; tap++) {
      const int64_t t = save->count - taps + tap;
      const float* input = t < 0 ? before + (t + taps) * channels : x + t * stride;
      memcpy(op.state + save->slot * slot_size + tap * op.outputs + first, input, bytes);
    }
  const float scale = 2 * block < op.unit_blocks ? op.scale : 1;
  kernels_.convolve({x, stride, before, op.weight + first, op.outputs, op.bias ? op.bias + first : nullptr, (int)span.count, channels,
                     op.taps, op.activation, block < op.unit_blocks, op.eps, scale});
}

// The slices of a thread, of whatever rank, follow each other in memory; it takes all of one span before the next.
void Worker::recur(const TmOp& op, size_t number) {
  const int slices = op.head_dim / op.columns;
  for (WorkItem item; (item = queues_.take(number, own_thread_)).owner >= 0;) {
    const auto [from, to] = share_of(op.heads * slices, first_thread_ + item.owner, model_.num_threads());
    const int count = to - from, slice = from + (int)(item.index % (uint32_t)count);
    recur_slice(op, plan_.spans[item.index / (uint32_t)count], slice / slices, slice % slices);
  }
}

// It is computed in the slot of the last states, where other slots take a copy of it on the way.
void Worker::recur_slice(const TmOp& op, const Span& span, int head, int slice) {
  const int64_t slices = op.head_dim / op.columns, size = (int64_t)op.key_dim * op.columns, slot_size = op.heads * slices * size;
  const size_t bytes = sizeof(float) * (size_t)size;
  float* first = op.state + (head * slices + slice) * size;
  const TmSave *save = plan_.step->saves + span.first_save, *end = save + span.num_saves;
  const int64_t last = end[-1].slot, key = (int64_t)head / (op.heads / op.key_heads) * op.key_dim;
  float* state = first + last * slot_size;
  if (span.state < 0) memset(state, 0, bytes);
  else if (span.state != last) memcpy(state, first + span.state * slot_size, bytes);
  for (int64_t done = 0; save < end; done = save++->count) {
    const float* row = stored(span.first + done);
    kernels_.recur({state, row + op.query + key, row + op.key + key,
                    stored(span.first + done) + op.value + head * op.head_dim + slice * op.columns, row + op.decay + head * op.decays,
                    op.strength < 0 ? nullptr : row + op.strength + head, model_.stored_stride, op.decays > 1 ? op.dt_bias + head * op.decays : nullptr,
                    (int)(save->count - done), op.key_dim, op.columns, op.a_log[head], op.dt_bias[head], op.scale, op.skip ? op.skip[head] : 0, op.min_step, op.max_step});
    if (save->slot != last) memcpy(first + save->slot * slot_size, state, bytes);
  }
}

void Worker::gate(const TmOp& op) {
  const int width = op.outputs, padded = (int)rounded(width, PAD);
  float *row = scratch_.row.get(), *gates = scratch_.gates.get();
  for (float* each : {row, gates}) std::fill(each + width, each + padded, 0.0f);
  const auto [from, to] = rows_of(plan_.step->num_tokens);
  for (int t = from; t < to; t++) {
    memcpy(row, (op.of_inputs ? inputs(t) : stored(t)) + op.column, sizeof(float) * (size_t)width);
    if (op.gate < 0) {
      input(op.to).store(kernels_, row, 0, t, 1, 0, padded, padded);
      continue;
    }
    memcpy(gates, stored(t) + op.gate, sizeof(float) * (size_t)width);
    if (op.sparse) keep_largest(op, gates);
    if (!op.gate_first) norm_blocks(op, t, row);
    kernels_.activate(gates, row, padded, op.activation, 0, 0);
    if (op.gate_first) norm_blocks(op, t, gates);
    input(op.to).store(kernels_, gates, 0, t, 1, 0, padded, padded);
  }
  meet_unless_small();
}

void Worker::norm_blocks(const TmOp& op, int token, float* row) const {
  const float* weight = own(op.weight, token);
  for (int at = 0; op.block && at < op.outputs; at += op.block)
    kernels_.norm(row + at, row + at, op.block, weight + (op.norm_scope == TM_OWN_HEAD ? at : 0), nullptr, op.eps, op.centred);
}
