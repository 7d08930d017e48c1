#include "plan/checks.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "plan/model.h"
#include "kernels/coded_table.h"

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
bool is_table(int scheme) { return scheme == FLOAT32 || scheme == BFLOAT16 || scheme == FLOAT16; }
bool is_buffer(int buffer) { return buffer >= 0 && buffer < NUM_BUFFERS; }

// Operations on which later ones depend: the last of each kind so far.
struct Before {
  TmOp heads{};      // TM_QKV, or TM_HEADS
  TmOp inner{};      // TM_GATED or TM_ACTIVATED
  TmOp stored{};     // the operation that has stored products
  int64_t attended = 0, gathered = 0, latent = 0;  // columns of these buffers
  int64_t stored_width = 0;  // columns of all stored products so far
  int64_t inputs = 0;        // columns of the inputs of all layers
  bool gathered_by_head = false;
  int streams = 0;           // of each token
  int64_t gated = 0;         // the end of the stored columns that the last gates were read from
};

bool activates(const TmOp& op) { return op.kind == TM_LINEAR && (op.epilogue == TM_GATED || op.epilogue == TM_ACTIVATED); }
bool is_inner(const TmOp& op) { return activates(op) && op.to == TM_MLP_INNER; }

// Columns of the buffer that a linear reads.
int64_t buffer_width(const TmModel& m, int buffer, const Before& before) {
  if (buffer == TM_MLP_INNER) return before.inner.outputs;
  if (buffer == TM_GATHERED) return before.gathered;
  if (buffer == TM_LATENT) return before.latent;
  return buffer == TM_ATTENDED ? before.attended : m.hidden;
}

int64_t all_heads(const TmOp& op) {
  const int64_t keys = op.kv_parts > 0 ? op.num_kv_heads : 0, values = op.kv_parts > 1 ? op.num_kv_heads : 0;
  return ((1ll + !!op.gated) * op.heads + keys) * op.head_dim + values * op.value_dim;
}

int64_t max_outputs(const TmModel& m, const TmOp& op) {
  switch (op.epilogue) {
    case TM_QKV: return all_heads(op);
    case TM_GATED: return std::min(op.outputs, op.to == TM_LATENT ? m.hidden : m.intermediate);
    case TM_ACTIVATED: return op.to == TM_LATENT ? op.outputs : std::min(op.outputs, m.intermediate);
    case TM_EXPERT: return std::min(op.outputs, m.hidden);
    case TM_LOGITS: return m.vocab;
    case TM_ROUTER:
    case TM_QUERY: return op.outputs;
    case TM_SHARED_GATE: return 1;
    case TM_STORE: return op.head_dim ? all_heads(op) : op.outputs;
    default: return m.hidden;
  }
}

void check_cache(const TmModel& m, const TmOp& op) {
  require(op.heads > 0 && op.num_kv_heads > 0 && op.head_dim > 0 && op.value_dim > 0, "an attention has no heads, or heads without entries");
  require(op.heads % op.num_kv_heads == 0, "query heads are no multiple of kv heads");
  require(op.value_dim == op.head_dim || (op.kind != TM_LINEAR && !(op.gated && op.kind == TM_HEADS)), "heads of v are wider or narrower than those of k");
  require(op.rotary >= 0 && op.rotary % 2 == 0, "rotary entries are odd");
  require(op.rotary <= op.head_dim, "rotary entries are more than a head has");
  require(!op.rotary || (op.cosines && op.sines), "rotary embedding has no table");
  require(op.norm_scope >= TM_EACH_HEAD && op.norm_scope <= TM_ALL_HEADS, "a norm of heads has an unknown scope");
  require(op.kv_parts >= 0 && op.kv_parts <= 2, "behind q stand more parts than k and v");
  require(op.kv_parts == 2 || op.norm_scope != TM_ALL_HEADS, "a norm over all heads of k that are not there");
  require(!op.kv_parts || !op.q_norm == !op.k_norm, "one of q and k has a norm, and the other has none");
  require(op.k_rows && op.v_rows, "an attention has no cache");
  require(m.cache_format != AS_INT8 || (op.k_scales && op.v_scales), "a cache in int8 has no scales");
}

void check_experts(const TmOp& op) {
  require(op.experts >= 0 && op.chosen >= 0 && op.chosen <= op.experts, "more experts are chosen than there are");
  require(!op.experts == !op.chosen, "experts of which none is chosen");
  require(!op.on_inputs || op.experts, "weights on the inputs of experts, of which there are none");
  require(!op.within_margin || (op.chosen == 2 && op.margin >= 0), "two experts are not chosen within a margin");
  if (op.kind != TM_CHOOSE || !op.groups) return;
  require(op.groups > 0 && op.experts % op.groups == 0, "groups do not divide the experts");
  require(op.chosen_groups > 0 && op.chosen_groups <= op.groups && op.experts / op.groups * op.chosen_groups >= op.chosen,
          "the chosen groups have too few experts");
}

void check_unit(const TmOp& op, const TmUnit& unit) {
  const bool is_head = op.epilogue == TM_QKV || (op.epilogue == TM_STORE && op.head_dim);
  const int limit = is_head ? op.head_dim : (int)GROUP;
  require(is_scheme(unit.scheme), "a unit has an unknown scheme");
  require(!unit.data || !unit.gate == (op.epilogue != TM_GATED), "a unit has no gate, or one that nothing reads");
  require(!unit.gate || is_scheme(unit.gate_scheme), "a unit's gate has an unknown scheme");
  for (int scheme : {unit.scheme, unit.gate ? unit.gate_scheme : unit.scheme})
    require(!is_super(scheme) || op.inputs % SUPER == 0, "a unit in superblocks has a part of one");
  require(unit.first >= 0 && unit.count > 0 && unit.count <= limit && unit.first <= op.outputs - unit.count,
          "a unit's rows are not those of its linear");
  // What is stored begins anywhere: parts of a matrix have any number of rows.
  const int step = is_head ? op.head_dim : op.epilogue == TM_STORE ? 1 : op.epilogue == TM_ROUTER ? (int)TILE : (int)GROUP;
  require(unit.first % step == 0 && (!is_head || unit.count == step), "a unit is not a whole head, or begins within a tile");
}

// Linears with a matrix for each head read what is gathered head by head, and nothing else does.
void check_by_head(const TmOp& op, const Before& before) {
  require(!op.by_head == !(before.gathered_by_head && op.from == TM_GATHERED), "rows of heads and rows of experts are mixed up");
  require(op.epilogue != TM_QUERY || (op.by_head && op.heads == before.heads.heads && op.head_dim == before.heads.head_dim && op.outputs <= op.head_dim),
          "queries of other heads than the rows have");
  if (!op.by_head) return;
  require(op.experts == before.heads.heads && op.chosen == op.experts, "matrices of other heads than there are");
  require(op.epilogue == TM_QUERY || op.epilogue == TM_STORE, "the products of heads have an unknown epilogue");
}

void check_linear(const TmModel& m, const TmOp& op, const Before& before) {
  require(op.epilogue >= TM_ADD && op.epilogue <= TM_QUERY && op.epilogue != TM_TO_BUFFER, "a linear has an unknown epilogue");
  check_by_head(op, before);
  const int64_t inputs = is_buffer(op.from) ? buffer_width(m, op.from, before) : 0;
  require(inputs > 0 && op.inputs == inputs, "a linear's inputs are not those of its buffer");
  if (op.epilogue == TM_QKV) check_cache(m, op);
  require(op.column >= 0, "products are stored before the first column");
  // In a small step no barrier stands between gates, which every thread reads for itself, and the linear behind them.
  require(op.epilogue != TM_STORE || op.from != TM_ATTENDED || op.column >= before.gated,
          "products are stored over gates that other threads read");
  const bool is_head = op.epilogue == TM_LOGITS;  // which may have the logits of the first tokens alone
  require(op.outputs > 0 && (op.outputs == max_outputs(m, op) || (is_head && op.outputs < m.vocab)), "a linear has other outputs than its epilogue takes");
  require(op.units && op.num_units > 0 && (!op.experts || op.num_units % op.experts == 0), "a linear has no units");
  require(!activates(op) || op.to == TM_MLP_INNER || op.to == TM_LATENT, "an MLP writes to another buffer than its inner one");
  require(op.activation >= IDENTITY && op.activation < NUM_ACTIVATIONS, "an activation is unknown");
  require(!op.biases || op.experts, "a bias for each expert, of which there are none");
  for (int e = 0; op.biases && e < op.experts; e++) require(op.biases[e], "an expert has no bias");
  for (int i = 0; i < op.num_units; i++) {
    require(op.units[i].data || m.num_ranks > 1, "a unit has no weights");
    check_unit(op, op.units[i]);
  }
}

void check_embedding(const TmModel& m, const TmOp& op) {
  require(is_table(op.scheme), "an embedding has an unknown type");
  require(op.outputs > 0 && op.outputs <= m.vocab && (op.bias || op.outputs == m.vocab), "an embedding has other tokens");
  if (op.table || (m.rank > 0 && !op.units)) return;
  require(op.units && op.num_units == (op.outputs + (int)GROUP - 1) / (int)GROUP, "an embedding has neither a table nor all units");
  for (int i = 0; i < op.num_units; i++) {
    const TmUnit& unit = op.units[i];
    require(unit.data || m.num_ranks > 1, "a unit of an embedding has no codes");
    require(!unit.data || (is_scheme(unit.scheme) && !is_table(unit.scheme)), "a unit of an embedding has no codes");
    require(!is_super(unit.scheme) || m.hidden % SUPER == 0, "a unit of an embedding in superblocks has a part of one");
    require(unit.first == i * GROUP && unit.count == std::min((int)GROUP, op.outputs - unit.first),
            "a unit of an embedding has other rows");
  }
}

// Whether the columns [first, first + count) hold stored products.
bool are_stored(const Before& before, int64_t first, int64_t count) {
  return first >= 0 && count > 0 && first <= before.stored_width - count;
}

void check_norm(const TmModel& m, const TmOp& op, const Before& before) {
  const bool adds = op.epilogue == TM_ADD, is_last = op.epilogue == TM_LOGITS, stores = op.epilogue == TM_STORE;
  if (stores) {
    require(op.weight && are_stored(before, op.column, m.hidden), "a norm of what was not stored");
    return require(!op.gated || are_stored(before, op.gate, m.hidden), "a norm is added to what was not stored");
  }
  if (op.epilogue == TM_IN_PLACE) return require(op.weight, "a norm has no weight or buffer");
  require(adds || is_last || op.epilogue == TM_TO_BUFFER, "a norm has an unknown epilogue");
  if (op.outputs) return require(op.weight && op.to == TM_LATENT && are_stored(before, op.column, op.outputs), "a norm of what was not stored");
  require(op.weight && (adds || op.to == TM_ATTENTION_IN || op.to == TM_MLP_IN), "a norm has no weight or buffer");
  require(!adds || (are_stored(before, op.column, m.hidden) && (op.column || before.stored.outputs == m.hidden)),
          "a norm of what was not stored");
}

void check_combine(const TmModel& m, const TmOp& op, const TmOp& stored) {
  require(op.experts, "experts of which there are none");
  const bool is_latent = op.epilogue == TM_TO_BUFFER && op.to == TM_LATENT && op.outputs > 0 && op.outputs <= m.hidden;
  require(op.epilogue == TM_ADD || op.epilogue == TM_STORE || is_latent, "the sums of experts have an unknown epilogue");
  require(!is_latent || !op.shared, "a shared expert beside latent rows");
  require(op.shared >= TM_NO_SHARED && op.shared <= TM_GATED_SHARED, "a shared expert of an unknown kind");
  require(!op.shared || stored.outputs == m.hidden, "a shared expert that was not stored");
}

void check_inputs(const TmModel& m, const TmOp& op, const Before& before) {
  require(op.outputs > 0 && op.block > 0 && op.outputs % op.block == 0, "inputs of layers have no blocks");
  require(op.weight && (op.table || m.rank > 0) && is_table(op.scheme), "inputs of layers have no norm or table");
  require(are_stored(before, op.column, op.outputs), "inputs of layers that were not stored");
  require(op.rows > 0, "inputs of layers have a table without rows");
  require(!op.coded || (block_bytes(op.coded) && op.outputs % block_numbers(op.coded) == 0), "a table of unknown codes");
}

void check_latent_rows(const TmModel& m, const TmOp& op, const Before& before) {
  check_cache(m, op);
  require(op.num_kv_heads == 1 && op.block > 0 && op.block < op.head_dim && op.columns > 0, "a latent row has no latent or rotated part");
  require(op.rotary == 0 || op.rotary == op.block, "a part of a latent row's end is rotated");
  require(op.weight && op.to == TM_GATHERED && op.experts == op.heads && op.chosen == op.heads, "a latent row has no norm or heads");
  require(are_stored(before, op.key, op.head_dim) && are_stored(before, op.query, (int64_t)op.heads * (op.columns + op.block)),
          "latent rows of what was not stored");
}

void check_streams(const TmModel& m, const TmOp& op, const Before& before) {
  const int num = op.kind == TM_EXPAND ? op.streams : before.streams;
  require(num > 1 && num <= MAX_STREAMS, "a token has one stream alone, or too many");
  if (op.kind == TM_PREDICT || op.kind == TM_CORRECT)
    return require(op.weight && op.router && op.coefficients, "streams without a norm, a router or coefficients");
  const bool is_one = op.kind == TM_BESIDE || op.kind == TM_SPREAD;
  require(are_stored(before, op.column, (is_one ? 1 : num - 1) * (int64_t)m.hidden), "streams of what was not stored");
  require(!is_one || op.weight, "a norm beside streams has no weight");
  require(op.kind != TM_BESIDE || op.input_norm, "a norm of a stream has no weight");
}

void check_keeps_states(const TmModel& m, const TmOp& op) {
  require(op.state && m.num_states > 0, "a layer with states has no slots of them");
}

void check_convolution(const TmModel& m, const TmOp& op, const Before& before) {
  check_keeps_states(m, op);
  require(op.weight && op.taps > 0 && op.block > 0 && op.unit_blocks >= 0, "a convolution has no taps, or blocks without channels");
  require(op.activation == IDENTITY || op.activation == SILU, "a convolution has an unknown activation");
  require(are_stored(before, op.column, op.outputs), "a convolution of what was not stored");
  require(!op.gated || are_stored(before, op.gate, op.outputs), "a convolution whose factors were not stored");
}

void check_recurrence(const TmModel& m, const TmOp& op, const Before& before) {
  check_keeps_states(m, op);
  require(op.key_heads > 0 && op.heads > 0 && op.heads % op.key_heads == 0, "heads are no multiple of key heads");
  require(op.key_dim > 0 && op.columns > 0 && op.head_dim > 0 && op.head_dim % op.columns == 0, "slices do not divide a head");
  require(op.a_log && op.dt_bias, "a recurrence has no decays");
  require(op.decays == 1 || (op.decays == op.key_dim && op.key_dim <= MAX_KEYS && op.strength >= 0),
          "decays of other numbers than a key has");
  const int64_t keys = (int64_t)op.key_heads * op.key_dim, values = (int64_t)op.heads * op.head_dim;
  require(are_stored(before, op.query, keys) && are_stored(before, op.key, keys) && are_stored(before, op.value, values) &&
              are_stored(before, op.decay, (int64_t)op.heads * op.decays) && (op.strength < 0 || are_stored(before, op.strength, op.heads)),
          "a recurrence of what was not stored");
}

void check_gate(const TmOp& op, const Before& before) {
  require(op.to == TM_ATTENDED, "gated results are written to another buffer");
  const bool is_there = op.of_inputs ? op.column >= 0 && op.outputs > 0 && op.column <= before.inputs - op.outputs
                                     : are_stored(before, op.column, op.outputs);
  require(is_there && (op.gate == -1 || are_stored(before, op.gate, op.outputs)), "gates of what was not stored");
  require(op.activation >= IDENTITY && op.activation < NUM_ACTIVATIONS, "an activation is unknown");
  require(op.block >= 0 && (!op.block || (op.weight && op.outputs % op.block == 0)), "norms do not divide what is gated");
}

void check_op(const TmModel& m, const TmOp& op, const Before& before) {
  check_experts(op);
  switch (op.kind) {
    case TM_EMBED: return check_embedding(m, op);
    case TM_NORM: return check_norm(m, op, before);
    case TM_COPY:
      require(op.stream >= 0 && (!op.stream || op.stream < before.streams), "a copy of a stream that is not there");
      return require(op.to == TM_ATTENTION_IN || op.to == TM_MLP_IN, "a copy has no buffer");
    case TM_LINEAR: return check_linear(m, op, before);
    case TM_HEADS:
      check_cache(m, op);
      return require(op.kv_parts == 2 && are_stored(before, 0, all_heads(op)), "heads that were not stored");
    case TM_ATTEND:
      check_cache(m, op);
      require(!op.by_head || (op.by_head > 0 && op.by_head <= op.value_dim && !op.gated && op.chosen == op.heads),
              "an attention gathers other heads than there are");
      require(op.to == (op.by_head ? TM_GATHERED : TM_ATTENDED) && op.window >= 0, "an attention writes to another buffer, or its window is negative");
      require(op.heads == before.heads.heads && op.num_kv_heads == before.heads.num_kv_heads && op.head_dim == before.heads.head_dim &&
                  op.value_dim == before.heads.value_dim,
              "an attention has other heads than its rows");
      require(!op.gated || op.activation == SIGMOID || op.activation == SOFTPLUS, "gates have an unknown activation");
      return require(!op.gated || (are_stored(before, op.gate, op.columns) &&
                                   (op.columns == op.heads || op.columns == (int64_t)op.heads * op.value_dim)),
                     "an attention has other gates than heads or numbers, or gates that were not stored");
    case TM_CHOOSE:
      require(op.from == TM_MLP_IN || (op.from == TM_LATENT && before.latent), "experts of other buffers");
      return require(op.experts && op.to == TM_GATHERED, "experts of other buffers");
    case TM_COMBINE: return check_combine(m, op, before.stored);
    case TM_CONVOLVE: return check_convolution(m, op, before);
    case TM_RECUR: return check_recurrence(m, op, before);
    case TM_GATE: return check_gate(op, before);
    case TM_INPUTS: return check_inputs(m, op, before);
    case TM_LATENT_ROWS: return check_latent_rows(m, op, before);
    case TM_PAIR: return require(!op.weight == !op.input_norm && (op.weight || op.inputs > 0) && op.to == TM_ATTENDED, "a pair without norms");
    case TM_REPLACE: return require(are_stored(before, op.column, m.hidden), "a residual stream of what was not stored");
    case TM_EXPAND: case TM_PREDICT: case TM_BESIDE: case TM_CORRECT: case TM_SPREAD: case TM_JOIN: return check_streams(m, op, before);
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

void check_states(const TmModel& m, const TmStep& step, const TmSpan& span) {
  require(span.state >= -1 && span.state < m.num_states, "a span begins with a state behind the last slot");
  require(step.saves && span.first_save >= 0 && span.num_saves > 0, "a span's states are stored nowhere");
  int64_t before = 0;
  for (const TmSave *save = step.saves + span.first_save, *end = save + span.num_saves; save < end; save++) {
    require(save->count > before && save->count <= span.count, "states are stored after other tokens than the span has");
    require(save->slot >= 0 && save->slot < m.num_states, "states are stored behind the last slot");
    before = save->count;
  }
  require(before == span.count, "the states after a span are stored nowhere");
}

}  // namespace

void check_model(const TmModel& m) {
  for (int size : {m.hidden, m.intermediate, m.vocab, m.num_ops, m.num_threads})
    require(size > 0, "a size of the model is not positive");
  require(m.num_positions > 0 && m.num_slots > 0 && m.num_states >= 0, "the model has no positions or slots");
  require(m.cache_format >= 0 && m.cache_format < NUM_FORMATS, "the cache has an unknown format");
  require(m.ops && m.build, "the model has no operations or build");
  require(m.num_ranks > 0 && m.rank >= 0 && m.rank < m.num_ranks, "the model's rank is not one of its ranks");
  require(!m.thread_nodes || (m.processor_nodes && m.num_processors > 0), "memory nodes without processors");
  require(m.num_ranks == 1 || (m.shared && m.max_tokens > 0), "several ranks share no memory");
  int experts = 0;
  Before before;
  for (int i = 0; i < m.num_ops; i++) {
    const TmOp& op = m.ops[i];
    check_op(m, op, before);
    if (op.kind == TM_LATENT_ROWS || op.kind == TM_HEADS || (op.kind == TM_LINEAR && op.epilogue == TM_QKV)) before.heads = op;
    if (op.kind == TM_ATTEND && !op.by_head) before.attended = (int64_t)op.heads * op.value_dim;
    if (op.kind == TM_LATENT_ROWS) before.gathered = op.columns, before.gathered_by_head = true;
    if (op.kind == TM_ATTEND && op.by_head) before.gathered = op.by_head, before.gathered_by_head = true;
    if (op.kind == TM_CHOOSE) before.gathered_by_head = false;
    if (op.kind == TM_NORM && op.epilogue == TM_TO_BUFFER && op.outputs) before.latent = op.outputs;
    if (op.kind == TM_GATE) before.attended = op.outputs;
    if (op.kind == TM_GATE) before.gated = std::max(op.gate, op.of_inputs ? 0 : op.column) + (int64_t)op.outputs;
    if (op.kind == TM_ATTEND) before.gated = op.gated ? (int64_t)op.gate + op.columns : 0;
    if (op.kind == TM_PAIR) before.attended = op.weight ? 2 * (int64_t)m.hidden : op.inputs;
    if (op.kind == TM_INPUTS) before.inputs = op.outputs;
    if (op.kind == TM_EXPAND) before.streams = op.streams;
    if (activates(op) && op.to == TM_LATENT) before.latent = op.outputs;
    if (op.kind == TM_CHOOSE) before.gathered = op.from == TM_LATENT ? before.latent : m.hidden;
    if (is_inner(op)) before.inner = op;
    if (op.kind == TM_LINEAR && op.epilogue == TM_STORE) before.stored = op;
    before.stored_width = std::max(before.stored_width, stored_columns(op));
    if (op.kind == TM_COMBINE && op.epilogue == TM_STORE) {
      before.stored = op, before.stored.outputs = m.hidden;
      before.stored_width = std::max<int64_t>(before.stored_width, m.hidden);
    }
    experts = std::max(experts, op.by_head ? 0 : op.experts);
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
  const bool pairs = std::any_of(m.ops, m.ops + m.num_ops, [](const TmOp& op) { return op.kind == TM_PAIR; });
  require(!pairs || step.given, "a step has no given rows");
  int64_t first = 0;
  for (int i = 0; i < step.num_spans; i++) {
    check_span(m, step.spans[i], first, step.num_tokens), first += step.spans[i].count;
    if (m.num_states) check_states(m, step, step.spans[i]);
  }
  require(first == step.num_tokens, "the spans do not have all tokens");
}

void check_adapters(const Model& model, const TmStep& step) {
  for (int i = 0; i < step.num_spans; i++) {
    const TmAdapter* adapter = step.spans[i].adapter;
    require(!adapter || model.shape.num_ranks == 1 || adapter->in_ranks, "an adapter that the other ranks do not have");
    require(!adapter || adapter->num_matrices == model.first_matrix.back(), "an adapter of another model");
  }
}
