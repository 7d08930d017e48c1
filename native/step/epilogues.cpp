// What happens to products once they are computed: biases, activation of an MLP, addition to the residual stream, norm and
// rotary embedding of queries and keys, storing of K and V rows, softcap of the logits.
#include "step/worker.h"

namespace {

// The bias of a linear whose rows are those of gate and up begins with the gate's: `offset` is where the rows of `unit` begin.
void add_bias(const TmOp& op, const TmUnit& unit, float* out, int offset) {
  if (op.bias)
    for (int i = 0; i < unit.count; i++) out[i] += op.bias[offset + unit.first + i];
}

}  // namespace

void Worker::apply_epilogues(const TmOp& op) {
  PendingProducts& pending = scratch_.pending;
  for (int i = 0; i < pending.count; i++) {
    const PendingProduct& product = pending.list[i];
    float *out = pending.out.get() + product.offset, *gate = pending.gate.get() + product.offset;
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
    add_bias(op, unit, inner + t * stride, 0);
    if (gated) add_bias(op, unit, out + t * stride, op.outputs);
  }
  kernels_.activate(inner, gated ? out : nullptr, product.count * stride, op.activation);
  for (int t = 0; t < product.count; t++) std::fill(inner + t * stride + unit.count, inner + (t + 1) * stride, 0.0f);
  memory_.buffers[op.to].store(kernels_, inner, stride, product.first, product.count, unit.first, unit.first + stride,
                               (int)rounded(op.outputs, PAD));
}

void Worker::apply_epilogue(const TmOp& op, const TmUnit& unit, int token, float* out) {
  const size_t bytes = sizeof(float) * (size_t)unit.count;
  switch (op.epilogue) {
    case TM_ADD:
      add_bias(op, unit, out, 0);
      kernels_.add(residual(token) + unit.first, out, unit.count);
      break;
    case TM_QKV:
      add_bias(op, unit, out, 0);
      store_head(op, unit, token, out);
      break;
    case TM_ROUTER: memcpy(routing_.logits.get() + (int64_t)token * op.outputs + unit.first, out, bytes); break;
    case TM_EXPERT: memcpy(routing_.outputs.get() + (int64_t)token * model_.shape.hidden + unit.first, out, bytes); break;
    case TM_LOGITS: store_logits(op, unit, token, out); break;
  }
}

void Worker::store_logits(const TmOp& op, const TmUnit& unit, int token, float* out) {
  add_bias(op, unit, out, 0);
  if (op.softcap > 0) kernels_.softcap(out, unit.count, op.softcap);
  const int64_t row = plan_.logit_rows ? plan_.logit_rows[token] : token;
  memcpy(plan_.step->logits + row * model_.shape.vocab + unit.first, out, sizeof(float) * (size_t)unit.count);
}

// A unit is one head of q, k or v.
void Worker::store_head(const TmOp& op, const TmUnit& unit, int token, float* out) {
  const TmModel& shape = model_.shape;
  const int head = unit.first / op.head_dim, half = shape.rotary / 2;
  const bool is_q = head < shape.num_heads, is_v = head >= shape.num_heads + op.num_kv_heads;
  if (!is_v) {
    const float* weight = is_q ? op.q_norm : op.k_norm;
    const int64_t position = plan_.step->positions[token];
    if (weight) kernels_.norm(out, out, op.head_dim, weight, nullptr, op.eps, 0);
    if (half) kernels_.rotate(out, shape.cosines + position * half, shape.sines + position * half, half);
  }
  const int width = Model::head_width(op);
  std::fill(out + op.head_dim, out + width, 0.0f);
  if (is_q)
    memcpy(memory_.queries.get() + ((int64_t)token * shape.num_heads + head) * width, out, sizeof(float) * (size_t)width);
  else
    store_kv(op, token, head - shape.num_heads - (is_v ? op.num_kv_heads : 0), is_v, out);
}

void Worker::store_kv(const TmOp& op, int token, int head, bool is_v, float* out) {
  const int64_t at = plan_.step->slots[token] * op.num_kv_heads + head;
  uint8_t* rows = (uint8_t*)(is_v ? op.v_rows : op.k_rows);
  float* scales = is_v ? op.v_scales : op.k_scales;
  kernels_.store_kv(out, op.head_dim, model_.shape.cache_format, rows + at * model_.head_bytes(op), scales ? scales + at : nullptr);
}
