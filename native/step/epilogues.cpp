// The use of products once they are computed: biases, activation of an MLP, addition to the residual stream, norm and
// rotary embedding of queries and keys, storing of K and V rows, softcap of the logits.
#include "step/worker.h"

namespace {

// The bias of a linear whose rows are gate and up, and its factors, begin with the gate's: `offset` is where the rows of `unit`
// begin.
void finish(const TmOp& op, const TmUnit& unit, float* out, int offset) {
  const float* bias = op.biases ? op.biases[(&unit - op.units) / (op.num_units / op.experts)] : op.bias;
  if (bias)
    for (int i = 0; i < unit.count; i++) out[i] += bias[offset + unit.first + i];
  if (op.factors)
    for (int i = 0; i < unit.count; i++) out[i] *= op.factors[offset + unit.first + i];
  if (op.clip > 0)
    for (int i = 0; i < unit.count; i++) out[i] = std::min(std::max(out[i], -op.clip), op.clip);
}

}  // namespace

void Worker::apply_epilogues(const TmOp& op) {
  PendingProducts& pending = scratch_.pending;
  const bool is_changed = plan_.changes(op_number(op));
  if (is_changed) wait_for_lowered();
  for (int i = 0; i < pending.count; i++) {
    const PendingProduct& product = pending.list[i];
    float *out = pending.out.get() + product.offset, *gate = pending.gate.get() + product.offset;
    if (is_changed) apply_changes(op, product, out, gate);
    if (op.epilogue == TM_GATED || op.epilogue == TM_ACTIVATED)
      activate(op, product, out, gate);
    else
      for (int t = 0; t < product.count; t++) apply_epilogue(op, *product.unit, product.first + t, out + t * product.stride);
  }
  pending.count = pending.size = 0;
}

// The inner activations of an MLP, of all tokens at once. Columns behind the unit's last are zero.
void Worker::activate(const TmOp& op, const PendingProduct& product, float* out, float* gate) {
  const bool gated = op.epilogue == TM_GATED;
  const TmUnit& unit = *product.unit;
  const int stride = product.stride;
  float* inner = gated ? gate : out;
  for (int t = 0; t < product.count; t++) {
    finish(op, unit, inner + t * stride, 0);
    if (gated) finish(op, unit, out + t * stride, op.outputs);
    if (!op.on_inputs) continue;
    const float weight = routing_.weight_of(product.first + t);  // of the inputs, and so of the products
    for (int i = 0; i < unit.count; i++) inner[t * stride + i] *= weight;
    for (int i = 0; gated && i < unit.count; i++) out[t * stride + i] *= weight;
  }
  kernels_.activate(inner, gated ? out : nullptr, product.count * stride, op.activation, op.act_a, op.act_b);
  for (int t = 0; t < product.count; t++) std::fill(inner + t * stride + unit.count, inner + (t + 1) * stride, 0.0f);
  const int end = unit.first + stride, width = (int)rounded(op.outputs, PAD);
  memory_.buffers[op.to].store(kernels_, inner, stride, product.first, product.count, unit.first, end, width);
  if (unit.first + unit.count == op.outputs && end < width)  // a wider MLP's numbers may lie there
    memory_.buffers[op.to].store(kernels_, scratch_.zeros.get(), 0, product.first, product.count, end, width, width);
}

void Worker::apply_epilogue(const TmOp& op, const TmUnit& unit, int token, float* out) {
  const size_t bytes = sizeof(float) * (size_t)unit.count;
  finish(op, unit, out, 0);
  switch (op.epilogue) {
    case TM_ADD:
      add_scaled(op, token, unit.first, out, unit.count);
      break;
    case TM_QKV:
      if (op.gated && unit.first < model_.attended_width(op))
        memcpy(stored(token) + unit.first, out, bytes);
      else
        store_head(op, unit.first / op.head_dim - (op.gated ? op.heads : 0), token, out);
      break;
    case TM_STORE:
      if (op.by_head) {
        const auto [head, row] = head_of(token);
        memcpy(stored(row) + op.column + (int64_t)head * op.outputs + unit.first, out, bytes);
      } else {
        memcpy(stored(token) + op.column + unit.first, out, bytes);
      }
      break;
    case TM_QUERY: {
      const auto [head, row] = head_of(token);
      memcpy(query(op, row, head) + unit.first, out, bytes);
      break;
    }
    case TM_SHARED_GATE: routing_.shared_gates.get()[token] = out[0]; break;
    case TM_ROUTER: memcpy(routing_.logits.get() + (int64_t)token * op.outputs + unit.first, out, bytes); break;
    case TM_EXPERT: memcpy(routing_.outputs.get() + (int64_t)token * model_.shape.hidden + unit.first, out, bytes); break;
    case TM_LOGITS: store_logits(op, unit, token, out); break;
  }
}

void Worker::store_logits(const TmOp& op, const TmUnit& unit, int token, float* out) {
  if (op.scale != 1)
    for (int i = 0; i < unit.count; i++) out[i] *= op.scale;
  if (op.softcap > 0) kernels_.softcap(out, unit.count, op.softcap);
  const int64_t row = plan_.logit_rows ? plan_.logit_rows[token] : token;
  memcpy(plan_.step->logits + row * model_.shape.vocab + unit.first, out, sizeof(float) * (size_t)unit.count);
}

// Stored heads of q, k and v, where norms take all heads of q and all of k as one row, or heads of v are of another width.
void Worker::store_heads(const TmOp& op) {
  const int heads[] = {op.heads, op.num_kv_heads, op.num_kv_heads}, dims[] = {op.head_dim, op.head_dim, op.value_dim};
  const auto [from, to] = share(plan_.step->num_tokens);
  float *row = scratch_.row.get(), *out = scratch_.head.get();
  for (int t = from; t < to; t++) {
    const float* part = stored(t) + (op.gated ? model_.attended_width(op) : 0);
    for (int kind = 0, head = 0; kind < 3; part += heads[kind] * dims[kind], kind++) {
      const int dim = dims[kind], width = heads[kind] * dim;
      memcpy(row, part, sizeof(float) * (size_t)width);
      std::fill(row + width, row + rounded(width, TILE), 0.0f);
      if (kind < 2 && op.norm_scope == TM_ALL_HEADS)
        kernels_.norm(row, row, width, own(kind ? op.k_norm : op.q_norm, t), own(kind ? op.k_norm_bias : op.q_norm_bias, t), op.eps, op.centred);
      for (int h = 0; h < heads[kind]; h++) {
        memcpy(out, row + h * dim, sizeof(float) * (size_t)dim);
        std::fill(out + dim, out + rounded(dim, TILE), 0.0f);
        store_head(op, head++, t, out);
      }
    }
  }
}

// One head of q, k or v, by its number among all of them.
void Worker::store_head(const TmOp& op, int head, int token, float* out) {
  const bool is_q = head < op.heads, is_v = head >= op.heads + op.num_kv_heads;
  const int dim = is_v ? op.value_dim : op.head_dim, width = (int)rounded(dim, TILE);
  if (is_v && op.v_norm) kernels_.norm(out, out, dim, op.v_norm, nullptr, op.eps, op.centred);
  if (!is_q && !is_v && op.kv_parts == 1) store_key_as_value(op, token, head, out);
  if (!is_v) {
    if (op.norms_after_rope) rotate_head(op, token, out);
    norm_head(op, token, is_q, is_q ? head : head - op.heads, out);
    if (!op.norms_after_rope) rotate_head(op, token, out);
  }
  if (is_q && op.temperatures)
    for (int i = 0; i < op.head_dim; i++) out[i] *= op.temperatures[plan_.step->positions[token]];
  std::fill(out + dim, out + width, 0.0f);
  if (is_q)
    memcpy(query(op, token, head), out, sizeof(float) * (size_t)width);
  else
    store_kv(op, token, head - op.heads - (is_v ? op.num_kv_heads : 0), is_v, out);
}

// The rows of latent attention, and what of the queries is no product of a head's own matrix.
void Worker::latent_rows(const TmOp& op, size_t number) {
  const int end = op.block, latent = op.head_dim - end, plain = op.columns, width = Model::head_width(op);
  const auto [from, to] = share(plan_.step->num_tokens);
  float *row = scratch_.row.get(), *out = scratch_.head.get();
  begin_heads(op, number);
  for (int t = from; t < to; t++) {
    const float* products = stored(t) + op.key;
    memcpy(row, products, sizeof(float) * (size_t)latent);
    std::fill(row + latent, row + rounded(latent, TILE), 0.0f);
    kernels_.norm(row, row, latent, own(op.weight, t), nullptr, op.eps, 0);
    memcpy(out, row, sizeof(float) * (size_t)latent);
    turned_end(op, t, products + latent, out);
    store_kv(op, t, 0, false, out);
    const float factor = op.temperatures ? op.temperatures[plan_.step->positions[t]] : 1;
    for (int h = 0; h < op.heads; h++) {
      const float* numbers = stored(t) + op.query + h * (plain + end);
      turned_end(op, t, numbers + plain, out);
      for (int i = 0; i < end; i++) out[latent + i] *= factor;
      memcpy(query(op, t, h) + latent, out + latent, sizeof(float) * (size_t)(width - latent));
      for (int i = 0; i < plain; i++) row[i] = numbers[i] * factor;
      gather_head(op, h, t, row, plain);
    }
  }
}

// The rotated end of a row or of a query, behind the latent columns of `out`; columns behind it are zero.
void Worker::turned_end(const TmOp& op, int token, const float* numbers, float* out) {
  const int latent = op.head_dim - op.block;
  float* turned = scratch_.value.get();
  memcpy(turned, numbers, sizeof(float) * (size_t)op.block);
  rotate_head(op, token, turned);
  memcpy(out + latent, turned, sizeof(float) * (size_t)op.block);
  std::fill(out + op.head_dim, out + Model::head_width(op), 0.0f);
}

// A key before norm and rope, as the value of the same head.
void Worker::store_key_as_value(const TmOp& op, int token, int head, const float* key) {
  const int width = Model::head_width(op);
  float* value = scratch_.value.get();
  memcpy(value, key, sizeof(float) * (size_t)op.head_dim);
  std::fill(value + op.head_dim, value + width, 0.0f);
  store_head(op, head + op.num_kv_heads, token, value);
}

void Worker::rotate_head(const TmOp& op, int token, float* out) {
  const int64_t half = op.rotary / 2, at = plan_.step->positions[token] * half;
  if (half) kernels_.rotate(out, op.cosines + at, op.sines + at, (int)half);
}

void Worker::norm_head(const TmOp& op, int token, bool is_q, int head, float* out) {
  const float *weight = own(is_q ? op.q_norm : op.k_norm, token), *bias = own(is_q ? op.q_norm_bias : op.k_norm_bias, token);
  if (!weight || op.norm_scope == TM_ALL_HEADS) return;
  const int64_t at = op.norm_scope == TM_OWN_HEAD ? (int64_t)head * op.head_dim : 0;
  kernels_.norm(out, out, op.head_dim, weight + at, bias ? bias + at : nullptr, op.eps, op.centred);
}

void Worker::store_kv(const TmOp& op, int token, int head, bool is_v, float* out) {
  const int64_t at = plan_.step->slots[token] * op.num_kv_heads + head;
  uint8_t* rows = (uint8_t*)(is_v ? op.v_rows : op.k_rows);
  float* scales = is_v ? op.v_scales : op.k_scales;
  kernels_.store_kv(out, is_v ? op.value_dim : op.head_dim, model_.shape.cache_format, rows + at * model_.head_bytes(op, is_v),
                    scales ? scales + at : nullptr);
}
