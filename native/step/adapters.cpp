// Adapters (LoRA): what is added to products of linears, and to embeddings, for the tokens of spans that have one. The other tokens
// are computed as if there were no adapters.
//
// A linear that some adapter of the step changes has two phases. First A x of all such tokens is computed: its rows are divided
// among the threads. After a barrier, each product gets B of that before its epilogue.
#include "step/worker.h"

// The changes of the matrix by which a row of the linear's input is multiplied: a token, a pair of token and expert, or a row of
// logits.
MatrixChanges Worker::changes_of(const TmOp& op, int row) const {
  const TmStep& step = *plan_.step;
  int token = row, matrix = model_.first_matrix[op_number(op)];
  if (op.experts) {
    token = routing_.token_of[(size_t)row];
    matrix += routing_.experts[(size_t)routing_.place_of[(size_t)row]];
  } else if (op.epilogue == TM_LOGITS && step.rows) {
    token = (int)step.rows[row];
  }
  const TmAdapter* adapter = plan_.adapter_of(token);
  if (!adapter) return {nullptr, nullptr};
  return {adapter->changes + adapter->firsts[matrix], adapter->changes + adapter->firsts[matrix + 1]};
}

void Worker::lower(const TmOp& op) {
  const int width = (int)rounded(op.inputs, PAD), threads = threads_.count();
  const int rows = op.experts ? routing_.num_pairs : op.epilogue == TM_LOGITS ? plan_.step->num_rows : plan_.step->num_tokens;
  const float* x = source(op.from).as(AS_FLOAT32, width).floats;
  // Of few rows each thread takes a part of A; of many, some rows, so that A is read from the cache of the processor.
  const bool by_rows = rows >= MIN_ROWS_OF_THREAD * threads;
  const auto [begin, end] = by_rows ? share_of(rows, own_thread_, threads) : std::pair<int, int>(0, rows);
  for (int row = begin, next; row < end; row = next) {
    const MatrixChanges changes = changes_of(op, row);
    for (next = row + 1; next < end && next < row + TOKEN_BLOCK && changes_of(op, next).begin_ == changes.begin_;) next++;
    for (const TmChange& change : changes) {
      if (!change.a) continue;
      const auto [from, to] = by_rows ? std::pair<int, int>(0, change.rank) : share_of(change.rank, own_thread_, threads);
      kernels_.lower(change.a, change.type, width, x + (int64_t)row * width, next - row, from, to, lowered(row) + change.at,
                     plan_.lowered_stride);
    }
  }
  ranks_.meet_own();
}

void Worker::apply_changes(const TmOp& op, const PendingProduct& product, float* out, float* gate) {
  const TmUnit& unit = *product.unit;
  for (int t = 0; t < product.count; t++) {
    const int row = product.first + t, at = t * product.stride;
    for (const TmChange& change : changes_of(op, row)) {
      const float* products = lowered(row) + change.at;
      if (op.epilogue == TM_GATED) {  // rows of gates stand before the others
        apply_change(change, products, unit.first, unit.count, gate + at);
        apply_change(change, products, op.outputs + unit.first, unit.count, out + at);
      } else {
        apply_change(change, products, unit.first, unit.count, out + at);
      }
    }
  }
}

// Changes `count` products, of rows from `first` on of the matrix.
void Worker::apply_change(const TmChange& change, const float* products, int first, int count, float* out) const {
  const int from = std::max(first, change.first), to = std::min(first + count, change.first + change.count), at = from - change.first;
  if (from >= to) return;
  out += from - first;
  if (change.b) {
    const int64_t numbers = (int64_t)(at / change.unit) * rounded(change.unit, TILE) * change.rank;
    const uint8_t* tiles = (const uint8_t*)change.b + numbers * (change.type == FLOAT32 ? 4 : 2);
    kernels_.raise(products, change.rank, tiles, change.type, change.scale, out, to - from);
  } else if (change.rank) {
    memcpy(out, products + at, sizeof(float) * (size_t)(to - from));
  }
  for (int i = 0; change.factors && i < to - from; i++) out[i] *= change.factors[at + i];
  for (int i = 0; change.bias && i < to - from; i++) out[i] += change.bias[at + i];
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
