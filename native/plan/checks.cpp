#include "plan/checks.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "plan/model.h"

namespace {

void require(bool good, const char* what) {
  if (!good) throw std::invalid_argument(what);
}

// The reason is only put together when it is needed.
void require_below(const int64_t* values, int64_t count, int64_t min, int64_t limit, const char* what) {
  int64_t low = min, high = min;
  for (int64_t i = 0; i < count; i++) low = std::min(low, values[i]), high = std::max(high, values[i]);
  if (low >= min && high < limit) return;
  throw std::invalid_argument(std::string("a ") + what + " is " + std::to_string(low < min ? low : high) + ", and there are " +
                              std::to_string(limit));
}

bool is_scheme(int scheme) { return scheme >= 0 && scheme < NUM_SCHEMES; }
bool is_table(int scheme) { return scheme == FLOAT32 || scheme == BFLOAT16; }
bool is_buffer(int buffer) { return buffer >= 0 && buffer < NUM_BUFFERS; }

// Columns of the buffer that a linear reads. attention: the last one before it.
int64_t buffer_width(const TmModel& m, int buffer, const TmOp& attention) {
  if (buffer == TM_MLP_INNER) return m.intermediate;
  return buffer == TM_ATTENDED ? (int64_t)m.num_heads * attention.head_dim : m.hidden;
}

int64_t max_outputs(const TmModel& m, const TmOp& op) {
  switch (op.epilogue) {
    case TM_QKV: return (m.num_heads + 2ll * op.num_kv_heads) * op.head_dim;
    case TM_GATED:
    case TM_ACTIVATED: return m.intermediate;
    case TM_LOGITS: return m.vocab;
    case TM_ROUTER: return op.outputs;
    default: return m.hidden;
  }
}

void check_cache(const TmModel& m, const TmOp& op) {
  require(op.num_kv_heads > 0 && op.head_dim > 0, "an attention has no heads, or heads without entries");
  require(m.num_heads % op.num_kv_heads == 0, "query heads are no multiple of kv heads");
  require(m.rotary <= op.head_dim, "rotary entries are more than a head has");
  require(op.k_rows && op.v_rows, "an attention has no cache");
  require(m.cache_format != AS_INT8 || (op.k_scales && op.v_scales), "a cache in int8 has no scales");
}

void check_experts(const TmOp& op) {
  require(op.experts >= 0 && op.chosen >= 0 && op.chosen <= op.experts, "more experts are chosen than there are");
  require(!op.experts == !op.chosen, "experts of which none is chosen");
}

void check_unit(const TmOp& op, const TmUnit& unit) {
  const int limit = op.epilogue == TM_QKV ? op.head_dim : (int)GROUP;
  require(unit.data && is_scheme(unit.scheme), "a unit has no weights, or an unknown scheme");
  require(!unit.gate == (op.epilogue != TM_GATED), "a unit has no gate, or one that nothing reads");
  require(!unit.gate || is_scheme(unit.gate_scheme), "a unit's gate has an unknown scheme");
  require(unit.first >= 0 && unit.count > 0 && unit.count <= limit && unit.first <= op.outputs - unit.count,
          "a unit's rows are not those of its linear");
  const int step = op.epilogue == TM_QKV ? op.head_dim : op.epilogue == TM_ROUTER ? (int)TILE : (int)GROUP;
  require(unit.first % step == 0 && (op.epilogue != TM_QKV || unit.count == step), "a unit is not a whole head, or begins within a tile");
}

void check_linear(const TmModel& m, const TmOp& op, const TmOp& attention) {
  require(op.epilogue >= TM_ADD && op.epilogue <= TM_EXPERT, "a linear has an unknown epilogue");
  const int64_t inputs = is_buffer(op.from) ? buffer_width(m, op.from, attention) : 0;
  require(inputs > 0 && op.inputs == inputs, "a linear's inputs are not those of its buffer");
  if (op.epilogue == TM_QKV) check_cache(m, op);
  require(op.outputs > 0 && op.outputs == max_outputs(m, op), "a linear has other outputs than its epilogue takes");
  require(op.units && op.num_units > 0 && (!op.experts || op.num_units % op.experts == 0), "a linear has no units");
  const bool inner = op.epilogue == TM_GATED || op.epilogue == TM_ACTIVATED;
  require(!inner || op.to == TM_MLP_INNER, "an MLP writes to another buffer than its inner one");
  for (int i = 0; i < op.num_units; i++) check_unit(op, op.units[i]);
}

void check_embedding(const TmModel& m, const TmOp& op) {
  require(is_table(op.scheme), "an embedding has an unknown type");
  if (op.table) return;
  require(op.units && op.num_units == (m.vocab + (int)GROUP - 1) / (int)GROUP, "an embedding has neither a table nor all units");
  for (int i = 0; i < op.num_units; i++) {
    const TmUnit& unit = op.units[i];
    require(unit.data && is_scheme(unit.scheme) && !is_table(unit.scheme), "a unit of an embedding has no codes");
    require(unit.first == i * GROUP && unit.count == std::min((int)GROUP, m.vocab - unit.first),
            "a unit of an embedding has other rows");
  }
}

// last: the last linear with TM_QKV before it. attention: the last attention before it.
void check_op(const TmModel& m, const TmOp& op, const TmOp& last, const TmOp& attention) {
  check_experts(op);
  switch (op.kind) {
    case TM_EMBED: return check_embedding(m, op);
    case TM_NORM: return require(op.weight && (op.to == TM_ATTENTION_IN || op.to == TM_MLP_IN), "a norm has no weight or buffer");
    case TM_LINEAR: return check_linear(m, op, attention);
    case TM_ATTEND:
      require(op.to == TM_ATTENDED && op.window >= 0, "an attention writes to another buffer, or its window is negative");
      require(op.num_kv_heads == last.num_kv_heads && op.head_dim == last.head_dim, "an attention has other heads than its rows");
      return check_cache(m, op);
    case TM_CHOOSE: return require(op.experts && op.from == TM_MLP_IN && op.to == TM_GATHERED, "experts of other buffers");
    case TM_COMBINE: return require(op.experts, "experts of which there are none");
    default: require(false, "an operation is of an unknown kind");
  }
}

// Differences instead of sums: no value that is passed can overflow them.
void check_span(const TmModel& m, const TmSpan& span, int64_t first, int64_t num_tokens) {
  require(span.first == first && span.count > 0 && span.count <= num_tokens - first, "the spans do not follow each other");
  require(span.start >= 0 && span.start <= m.num_positions - span.count, "a span ends behind the last position");
  const int64_t end = span.start + span.count;
  if (span.base >= 0) return require(span.base <= m.num_slots - end, "a span ends behind the last slot");
  require(span.slots, "a span has no slots");
  require_below(span.slots, end, 0, m.num_slots, "span's slot");
}

}  // namespace

void check_model(const TmModel& m) {
  for (int size : {m.hidden, m.num_heads, m.intermediate, m.vocab, m.num_ops, m.num_threads})
    require(size > 0, "a size of the model is not positive");
  require(m.num_positions > 0 && m.num_slots > 0, "the model has no positions or slots");
  require(m.rotary >= 0 && m.rotary % 2 == 0, "rotary entries are odd");
  require(!m.rotary || (m.cosines && m.sines), "rotary embedding has no table");
  require(m.cache_format >= AS_FLOAT32 && m.cache_format <= AS_INT8, "the cache has an unknown format");
  require(m.ops && m.build, "the model has no operations or build");
  int experts = 0;
  TmOp last{}, attention{};
  for (int i = 0; i < m.num_ops; i++) {
    const TmOp& op = m.ops[i];
    check_op(m, op, last, attention);
    if (op.kind == TM_LINEAR && op.epilogue == TM_QKV) last = op;
    if (op.kind == TM_ATTEND) attention = op;
    experts = std::max(experts, op.experts);
  }
  for (int i = 0; i < m.num_ops; i++) {
    const bool router = m.ops[i].kind == TM_LINEAR && m.ops[i].epilogue == TM_ROUTER;
    require(!router || m.ops[i].outputs == experts, "a router's outputs are not the experts");
  }
}

void check_step(const TmModel& m, const TmStep& step) {
  require(step.num_tokens > 0 && step.num_spans > 0 && step.num_rows >= 0 && step.num_stops >= 0, "the step is empty");
  require_below(step.tokens, step.num_tokens, -1, m.vocab, "token");
  require_below(step.positions, step.num_tokens, 0, m.num_positions, "position");
  require_below(step.slots, step.num_tokens, 0, m.num_slots, "slot");
  if (step.rows) require_below(step.rows, step.num_rows, 0, step.num_tokens, "row");
  require(step.rows || step.num_rows <= step.num_tokens, "there are more rows than tokens");
  int64_t first = 0;
  for (int i = 0; i < step.num_spans; i++) check_span(m, step.spans[i], first, step.num_tokens), first += step.spans[i].count;
  require(first == step.num_tokens, "the spans do not have all tokens");
}
