// Products of weights and activations. A thread computes the products of several units before it applies their epilogues: an
// epilogue reads no weights, and a stream of weights that pauses for an epilogue takes time to get going again.
#include "step/worker.h"

#include "products/tile_bytes.h"

namespace {

constexpr int64_t MAX_ROUND_BYTES = 3 << 18;  // of activations; nearly the second-level cache

// The tokens, or pairs of token and expert, of a round. Without experts there is one expert, number 0.
ExpertRound round_of(const TmOp& op, const ExpertRouting& routing, size_t round, int tokens) {
  if (op.experts) return routing.rounds[round];
  const int size = (int)tokens_per_round(op), begin = (int)round * size;
  return {0, begin, std::min(begin + size, tokens)};
}

}  // namespace

int64_t tokens_per_round(const TmOp& op) {
  const int64_t bytes = op.inputs * (int64_t)(format_of(op.units[0].scheme) == AS_INT8 ? 2 : 4);
  return std::max<int64_t>(1, MAX_ROUND_BYTES / bytes / TOKEN_BLOCK) * TOKEN_BLOCK;
}

// An entry of a work queue is one unit and one round of tokens: all units for the first round come before all for the next. The
// shares of an experts' linear are units of each expert.
void Worker::linear(const TmOp& op, size_t number) {
  const int width = (int)rounded(op.inputs, PAD);
  Activations x = source(op.from).as(format_of(op.units[0].scheme), width);
  const int tokens = op.epilogue == TM_LOGITS ? plan_.step->num_rows : plan_.step->num_tokens;
  if (plan_.changes(number)) lower(op);
  for (WorkItem item; (item = queues_.take(number, own_thread_)).owner >= 0;) {
    const std::vector<int>& units = model_.shares[number][(size_t)item.owner];
    const uint32_t count = (uint32_t)units.size(), round = item.index / count;
    const ExpertRound range = round_of(op, routing_, round, tokens);
    const int unit = range.expert * (op.num_units / std::max(1, op.experts)) + units[item.index - round * count];
    for (int first = range.begin; first < range.end; first += TOKEN_BLOCK)
      multiply_unit(op, op.units[unit], x, first, std::min(TOKEN_BLOCK, range.end - first));
  }
  apply_epilogues(op);
}

// Appends the product of a unit to the products that wait for their epilogues.
void Worker::multiply_unit(const TmOp& op, const TmUnit& unit, Activations& x, int first, int count) {
  PendingProducts& pending = scratch_.pending;
  const int stride = (int)rounded(unit.count, GROUP);  // so that a last group that is short can be padded with zeros
  if (pending.size + count * stride > MAX_PENDING) apply_epilogues(op);
  float *out = pending.out.get() + pending.size, *gate = pending.gate.get() + pending.size;
  if (op.epilogue == TM_ADD) prefetch_residual(unit, first, count);
  multiply(op, unit.data, unit.scheme, unit.count, x, first, count, out, stride);
  if (unit.gate) multiply(op, unit.gate, unit.gate_scheme, unit.count, x, first, count, gate, stride);
  pending.list[pending.count++] = {&unit, first, count, pending.size, stride};
  pending.size += count * stride;
}

void Worker::multiply(const TmOp& op, const uint8_t* data, int scheme, int rows, Activations& x, int first, int count, float* out,
                      int stride) {
  const int64_t bytes = tile_bytes(scheme, op.inputs), groups = x.k / GROUP;
  for (int row = 0; row < rows; row += 2 * TILE, data += 2 * bytes) {
    const int tiles = rows - row > TILE ? 2 : 1;
    if (count >= 8) x.kv_prefetch = next_prefetch(tiles * (count / 8) * groups * PREFETCH_BYTES);
    kernels_.product[scheme](data, tiles, x, first, count, out + row, stride);
  }
}

// The columns of the residual stream that the product of a unit will be added to.
void Worker::prefetch_residual(const TmUnit& unit, int first, int count) {
  for (int t = first; t < first + count; t++)
    for (int i = 0; i < unit.count; i += 16) TM_PREFETCH(residual(t) + unit.first + i, 3);
}
