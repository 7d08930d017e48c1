// Adapters (LoRA): what is added to products of linears, and to embeddings, for the tokens of spans that have one. The other tokens
// are computed as if there were no adapters.
//
// A linear that some adapter of the step changes has two phases. First A x of all such tokens is computed: its rows are divided
// among the threads. Then, before its epilogue, each product gets B of that; a thread waits for the parts of the others only there,
// when it has multiplied as many units as its memory for products holds.
#include <thread>

#include "step/worker.h"

namespace {

// A x of the rows, its columns [from, to).
void lower_rows(const Kernels& kernels, const TmChange& change, int from, int to, const float* x, int width, float* lowered,
                int64_t stride, const int* rows, int count) {
  if (from < to && count) kernels.lower({change.a, change.type, width, from, to, x, lowered + change.at, stride, rows, count});
}

}  // namespace

// Calls `use` with the rows from `first` to before `end` that adapters change, those together that have the same changes.
template <class Use> void Worker::for_changed_rows(const TmOp& op, int first, int end, const Use& use) const {
  const int matrix = model_.first_matrix[op_number(op)];
  if (!op.experts) {
    for (const AdaptedRows& own : plan_.adapted_rows) {
      const TmChange *begin = own.adapter->changes + own.adapter->firsts[matrix], *stop = own.adapter->changes + own.adapter->firsts[matrix + 1];
      if (begin == stop) continue;
      const std::vector<int>& rows = op.epilogue == TM_LOGITS ? own.logits : own.tokens;
      const auto from = std::lower_bound(rows.begin(), rows.end(), first), to = std::lower_bound(from, rows.end(), end);
      if (from != to) use(ChangedRows{begin, stop, &*from, (int)(to - from)});
    }
    return;
  }
  int rows[TOKEN_BLOCK];
  for (int row = first, next; row < end; row = next) {  // pairs are in the order of their experts, then of their tokens
    const size_t at = (size_t)row;
    const TmAdapter* adapter = plan_.adapter_of(routing_.token_of[at]);
    const int expert = routing_.experts[(size_t)routing_.place_of[at]];
    int count = 0;
    for (next = row; next < end && count < TOKEN_BLOCK; next++) {
      const size_t other = (size_t)next;
      if (plan_.adapter_of(routing_.token_of[other]) != adapter || routing_.experts[(size_t)routing_.place_of[other]] != expert) break;
      rows[count++] = next;
    }
    if (!adapter) continue;
    const TmChange *begin = adapter->changes + adapter->firsts[matrix + expert], *stop = adapter->changes + adapter->firsts[matrix + expert + 1];
    if (begin != stop) use(ChangedRows{begin, stop, rows, count});
  }
}

void Worker::lower(const TmOp& op) {
  const int width = (int)rounded(op.inputs, PAD), threads = threads_.count();
  const int rows = op.experts ? routing_.num_pairs : op.epilogue == TM_LOGITS ? plan_.step->num_rows : plan_.step->num_tokens;
  const float* x = source(op.from).as(AS_FLOAT32, width).floats;
  // Of few rows each thread takes a part of A; of many, some rows, so that A is read from the cache of the processor.
  const bool by_rows = rows >= MIN_ROWS_OF_THREAD * threads;
  const auto [begin, end] = by_rows ? share_of(rows, own_thread_, threads) : std::pair<int, int>(0, rows);
  float* lowered = memory_.lowered.get();
  for_changed_rows(op, begin, end, [&](const ChangedRows& changed) {
    for (const TmChange* change = changed.begin; change != changed.end; change++) {
      if (!change->a) continue;
      const auto [from, to] = by_rows ? std::pair<int, int>(0, change->rank) : share_of(change->rank, own_thread_, threads);
      lower_rows(kernels_, *change, from, to, x, width, lowered, plan_.lowered_stride, changed.rows, changed.count);
    }
  });
  num_lowered_ += (uint32_t)threads;
  memory_.num_lowered.fetch_add(1, std::memory_order_release);
}

// Until every thread has written its part of A x.
void Worker::wait_for_lowered() {
  for (int tries = 0; memory_.num_lowered.load(std::memory_order_acquire) < num_lowered_; tries++)
    if (tries > 1000) std::this_thread::yield();
}

void Worker::apply_changes(const TmOp& op, const PendingProduct& product, float* out, float* gate) {
  for_changed_rows(op, product.first, product.first + product.count, [&](const ChangedRows& changed) {
    for (const TmChange* change = changed.begin; change != changed.end; change++) {
      if (op.epilogue == TM_GATED) apply_change(*change, changed, product, 0, gate);  // rows of gates stand before the others
      apply_change(*change, changed, product, op.epilogue == TM_GATED ? op.outputs : 0, out);
    }
  });
}

// Changes products of rows of the matrix from the unit's first one, plus `offset`, on.
void Worker::apply_change(const TmChange& change, const ChangedRows& rows, const PendingProduct& product, int offset, float* out) {
  const int first = offset + product.unit->first;
  const int from = std::max(first, change.first), to = std::min(first + product.unit->count, change.first + change.count);
  if (from >= to) return;
  const int at = from - change.first;
  const float* lowered = memory_.lowered.get() + change.at;
  out += from - first;
  if (change.b) {
    const int64_t numbers = (int64_t)(at / change.unit) * rounded(change.unit, TILE) * change.rank;
    const uint8_t* tiles = (const uint8_t*)change.b + numbers * (change.type == FLOAT32 ? 4 : 2);
    kernels_.raise({tiles, change.type, change.rank, to - from, change.scale, lowered, plan_.lowered_stride, out, product.stride,
                    product.first, rows.rows, rows.count});
  }
  for (int r = 0; r < rows.count && (!change.b || change.factors || change.bias); r++) {
    const int row = rows.rows[r];
    float* own = out + (row - product.first) * product.stride;
    if (!change.b && change.rank) memcpy(own, lowered + row * plan_.lowered_stride + at, sizeof(float) * (size_t)(to - from));
    for (int i = 0; change.factors && i < to - from; i++) own[i] *= change.factors[at + i];
    for (int i = 0; change.bias && i < to - from; i++) own[i] += change.bias[at + i];
  }
}

// The tensor of a norm, or what the adapter of a token has in its place.
const float* Worker::tensor_of_norm(const float* tensor, int token) const {
  const TmAdapter* adapter = plan_.adapter_of(token);
  if (!adapter) return tensor;
  const TmNorm *end = adapter->norms + adapter->num_norms;
  const TmNorm* found = std::lower_bound(adapter->norms, end, tensor, [](const TmNorm& norm, const float* wanted) { return norm.before < wanted; });
  return found != end && found->before == tensor ? found->after : tensor;
}

// A row of the embedding as the adapter of a token has it.
void Worker::change_embedding(const TmAdapter& adapter, int64_t token, float* row) const {
  const int hidden = model_.shape.hidden, rank = adapter.rank;
  if (adapter.table)
    for (int i = 0; i < hidden; i++) row[i] = table_entry(adapter.table, adapter.type, token * hidden + i);
  for (int i = 0; rank && i < hidden; i++) {
    float sum = 0;
    for (int r = 0; r < rank; r++)
      sum += table_entry(adapter.a, adapter.type, token * rank + r) * table_entry(adapter.b, adapter.type, (int64_t)r * hidden + i);
    row[i] += adapter.scale * sum;
  }
  const int64_t* found = std::find(adapter.ids, adapter.ids + adapter.num_ids, token);
  for (int i = 0; found != adapter.ids + adapter.num_ids && i < hidden; i++)
    row[i] = table_entry(adapter.rows, adapter.type, (found - adapter.ids) * hidden + i);
}
