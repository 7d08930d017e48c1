// The operations of a step but attention and the choice of experts.
#include "model.h"

void Model::perform(size_t number, int me) {
  const TmOp& op = ops_[number];
  switch (op.kind) {
    case TM_EMBED: embed(op, me), threads_->meet(); break;
    case TM_NORM: norm(op, me); break;
    case TM_LINEAR: linear(op, number, me), threads_->meet(); break;
    case TM_ATTEND: attend(op, number, me); break;
    case TM_CHOOSE: choose(op, me); break;
    case TM_COMBINE: combine(op, me), threads_->meet(); break;
  }
}

float Model::number(const void* table, int scheme, int64_t at) {
  if (scheme == FLOAT32) return ((const float*)table)[at];
  const uint32_t bits = (uint32_t)((const uint16_t*)table)[at] << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

void Model::embed(const TmOp& op, int me) {
  const auto [from, to] = share(step_->num_tokens, me);
  for (int t = from; t < to; t++) {
    float* row = x(t);
    for (int i = 0; i < m_.hidden; i++) row[i] = number(op.table, op.scheme, step_->tokens[t] * m_.hidden + i);
    if (op.positions)
      for (int i = 0; i < m_.hidden; i++) row[i] += number(op.positions, op.scheme, step_->positions[t] * m_.hidden + i);
  }
}

// Before the head only the wanted rows are normed, to the front of the buffer.
void Model::norm(const TmOp& op, int me) {
  const bool wanted = op.epilogue == TM_LOGITS;
  const int count = wanted ? step_->num_rows : step_->num_tokens;
  const auto [from, to] = few_ ? std::pair<int, int>(0, count) : share(count, me);
  float* row = desks_[(size_t)me].row.get();
  const int padded = (int)rounded(m_.hidden, PAD);
  memset(row + m_.hidden, 0, sizeof(float) * (size_t)(padded - m_.hidden));
  for (int t = from; t < to; t++) {
    const int64_t source = wanted && step_->rows ? step_->rows[t] : t;
    kernels_.norm(x(source), row, m_.hidden, op.weight, op.bias, op.eps, op.centred);
    buffer(op.to, me, few_).put(kernels_, row, 0, t, 1, 0, padded);
  }
  if (!few_) threads_->meet();
}

// What nobody has taken of an operation: the next of this thread's own share; when there is none, the last of somebody else's,
// but for the very last, which its owner begins sooner than anybody could fetch it.
Taken Model::take(size_t number, int me) {
  for (int i = 0; i < m_.num_threads; i++) {
    const int whose = (me + i) % m_.num_threads;
    std::atomic<uint64_t>& left = left_[(size_t)whose * ops_.size() + number];
    uint64_t now = left.load(std::memory_order_relaxed);
    while ((uint32_t)now + (i ? 1 : 0) < (uint32_t)(now >> 32)) {
      const uint64_t then = i ? now - (1ull << 32) : now + 1;
      if (left.compare_exchange_weak(now, then, std::memory_order_relaxed)) return {whose, i ? (uint32_t)(then >> 32) : (uint32_t)now};
    }
  }
  return {-1, 0};
}

// The products of some units, then what follows on each of them: that does without memory, and a stream of weights that is
// interrupted takes time to begin again.
void Model::linear(const TmOp& op, size_t number, int me) {
  // An MLP's inner activations and the experts' rows are made by all threads together.
  const bool own = few_ && op.from != TM_MLP_INNER && op.from != TM_GATHERED;
  Act act = buffer(op.from, me, own).as(form_of(op.units[0].scheme));
  const int tokens = op.epilogue == TM_LOGITS ? step_->num_rows : step_->num_tokens;
  Desk& desk = desks_[(size_t)me];
  const int round = (int)round_tokens(op);
  for (Taken taken; (taken = take(number, me)).whose >= 0;) {
    const std::vector<int>& units = shares_[number][(size_t)taken.whose];
    const int at = units[taken.at % units.size()], skipped = (int)(taken.at / units.size()) * round;
    const TmUnit& unit = op.units[at];
    const int expert = op.experts ? at / (op.num_units / op.experts) : 0;
    const int begin = (op.experts ? expert_first_[(size_t)expert] : 0) + skipped;
    const int end = std::min(begin + round, op.experts ? expert_first_[(size_t)expert + 1] : tokens);
    for (int first = begin; first < end; first += TOKEN_BLOCK) {
      const int count = std::min(TOKEN_BLOCK, end - first);
      const int stride = (int)rounded(unit.count, GROUP);  // so that a short last group has room for its zeros
      if (desk.made_size + count * stride > MADE) finish_made(op, desk);
      float *out = desk.tile.get() + desk.made_size, *gate = desk.gate.get() + desk.made_size;
      if (op.epilogue == TM_ADD) fetch_rows(unit, first, count);
      multiply(op, unit.data, unit.scheme, unit.count, act, first, count, out, stride, me);
      if (unit.gate) multiply(op, unit.gate, unit.gate_scheme, unit.count, act, first, count, gate, stride, me);
      desk.made[desk.num_made++] = {&unit, first, count, desk.made_size, stride};
      desk.made_size += count * stride;
    }
  }
  finish_made(op, desk);
}

// The columns of x that a unit's products will be added to.
void Model::fetch_rows(const TmUnit& unit, int first, int count) {
  for (int t = first; t < first + count; t++)
    for (int i = 0; i < unit.count; i += 16) TM_FETCH(x(t) + unit.first + i, 3);
}

void Model::finish_made(const TmOp& op, Desk& desk) {
  for (int i = 0; i < desk.num_made; i++) {
    const Made& made = desk.made[i];
    float *out = desk.tile.get() + made.at, *gate = desk.gate.get() + made.at;
    if (op.epilogue == TM_GATED || op.epilogue == TM_ACTIVATED)
      finish_inner(op, made, out, gate);
    else
      for (int t = 0; t < made.count; t++) finish(op, *made.unit, made.first + t, out + t * made.stride);
  }
  desk.num_made = desk.made_size = 0;
}

// An MLP's inner activations, for all tokens at once. Columns behind the unit's last are zero.
void Model::finish_inner(const TmOp& op, const Made& made, float* out, float* gate) {
  const bool gated = op.epilogue == TM_GATED;
  float* inner = gated ? gate : out;
  for (int t = 0; t < made.count; t++) {
    add_bias(op, *made.unit, inner + t * made.stride, 0);
    if (gated) add_bias(op, *made.unit, out + t * made.stride, op.outputs);
  }
  kernels_.activate(inner, gated ? out : nullptr, made.count * made.stride, op.activation);
  for (int t = 0; t < made.count; t++) std::fill(inner + t * made.stride + made.unit->count, inner + (t + 1) * made.stride, 0.0f);
  const int from = made.unit->first;
  shared_[op.to].put(kernels_, inner, made.stride, made.first, made.count, from, from + made.stride);
}

void Model::multiply(const TmOp& op, const uint8_t* data, int scheme, int rows, Act& act, int first, int count, float* out, int stride,
              int me) {
  const int64_t bytes = tile_bytes(scheme, op.inputs), groups = act.k / GROUP;
  for (int row = 0; row < rows; row += 2 * TILE, data += 2 * bytes) {
    const int tiles = rows - row > TILE ? 2 : 1;
    if (count >= 8) act.coming = coming(tiles * (count / 8) * groups * COMING, me);
    kernels_.product[scheme](data, tiles, act, first, count, out + row, stride);
  }
}

void Model::expect(const TmOp* attention, int me) {
  Desk& desk = desks_[(size_t)me];
  desk.coming = attention && !attention->window && !stretches_[(size_t)me].empty() ? attention : nullptr;
  desk.stretch = 0, desk.of_values = false, desk.offset = 0;
}

// The next so many bytes of the cache that this thread will read, or null. They may reach beyond what it needs.
const uint8_t* Model::coming(int64_t bytes, int me) {
  Desk& desk = desks_[(size_t)me];
  if (!desk.coming || !bytes) return nullptr;
  const int64_t row = head_bytes() * m_.num_kv_heads;
  const std::vector<Stretch>& stretches = stretches_[(size_t)me];
  const Stretch& stretch = stretches[desk.stretch];
  const uint8_t* at = (const uint8_t*)(desk.of_values ? desk.coming->v_rows : desk.coming->k_rows) + stretch.slot * row + desk.offset;
  const int64_t left = stretch.count * row - desk.offset;
  desk.offset += bytes;
  if (left <= bytes) {
    desk.offset = 0, desk.of_values = !desk.of_values;
    if (!desk.of_values && ++desk.stretch == stretches.size()) desk.coming = nullptr;
  }
  return 2 * left < bytes ? nullptr : at;
}

void Model::finish(const TmOp& op, const TmUnit& unit, int token, float* out) {
  switch (op.epilogue) {
    case TM_ADD:
      add_bias(op, unit, out, 0);
      kernels_.add(x(token) + unit.first, out, unit.count);
      break;
    case TM_QKV: add_bias(op, unit, out, 0), finish_head(op, unit, token, out); break;
    case TM_ROUTER:
      memcpy(router_.get() + (int64_t)token * op.outputs + unit.first, out, sizeof(float) * (size_t)unit.count);
      break;
    case TM_PART:
      memcpy(parts_.get() + (int64_t)token * m_.hidden + unit.first, out, sizeof(float) * (size_t)unit.count);
      break;
    case TM_LOGITS: {
      add_bias(op, unit, out, 0);
      if (op.softcap > 0) kernels_.softcap(out, unit.count, op.softcap);
      const int64_t place = places_ ? places_[token] : token;
      memcpy(step_->logits + place * m_.vocab + unit.first, out, sizeof(float) * (size_t)unit.count);
      break;
    }
  }
}

void Model::finish_head(const TmOp& op, const TmUnit& unit, int token, float* out) {
  const int head = unit.first / m_.head_dim, half = m_.rotary / 2;
  const bool is_q = head < m_.num_heads, is_v = head >= m_.num_heads + m_.num_kv_heads;
  if (!is_v) {
    const float* weight = is_q ? op.q_norm : op.k_norm;
    if (weight) kernels_.norm(out, out, m_.head_dim, weight, nullptr, op.eps, 0);
    if (half) kernels_.rotate(out, m_.cosines + step_->positions[token] * half, m_.sines + step_->positions[token] * half, half);
  }
  if (is_q) {
    memcpy(q_.get() + ((int64_t)token * m_.num_heads + head) * width_, out, sizeof(float) * (size_t)m_.head_dim);
    return;
  }
  const int kv_head = head - m_.num_heads - (is_v ? m_.num_kv_heads : 0);
  const int64_t at = step_->slots[token] * m_.num_kv_heads + kv_head;
  std::fill(out + m_.head_dim, out + width_, 0.0f);
  float* scales = is_v ? op.v_scales : op.k_scales;
  kernels_.cache_row(out, m_.head_dim, m_.cache_form, (uint8_t*)(is_v ? op.v_rows : op.k_rows) + at * head_bytes(),
                     scales ? scales + at : nullptr);
}

// Where gate and up have biases, the gate's come first.
void Model::add_bias(const TmOp& op, const TmUnit& unit, float* out, int offset) {
  if (op.bias)
    for (int i = 0; i < unit.count; i++) out[i] += op.bias[offset + unit.first + i];
}
