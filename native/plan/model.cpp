// The preparation of a model, once before any step: formats of the activation buffers, and units divided among threads.
#include "plan/model.h"

#include <numeric>

#include "kernels/builds.h"
#include "products/tile_bytes.h"

namespace {

int64_t unit_bytes(const TmOp& op, const TmUnit& unit) {
  const int64_t tiles = (unit.count + TILE - 1) / TILE;
  return tiles * (tile_bytes(unit.scheme, op.inputs) + (unit.gate ? tile_bytes(unit.gate_scheme, op.inputs) : 0));
}

}  // namespace

int64_t stored_columns(const TmOp& op) {
  const int64_t gates = op.gated ? (int64_t)op.heads * op.head_dim : 0;
  if (op.kind == TM_LINEAR && op.epilogue == TM_QKV) return gates;
  if (op.kind == TM_LINEAR && op.epilogue == TM_STORE)
    return op.column + (op.by_head ? op.experts : 1) * (int64_t)op.outputs;
  return 0;
}

Model::Model(const TmModel& description)
    : shape(description),
      nodes{description.thread_nodes, description.processor_nodes, description.num_processors},
      ops(description.ops, description.ops + description.num_ops),
      kernels(find_kernels(description.build)) {
  lay_out_buffers();
  for (const TmOp& op : ops) {
    shares.push_back(op.kind == TM_LINEAR ? divide(op) : std::vector<std::vector<int>>());
    if (op.num_kv_heads) max_heads = std::max(max_heads, op.heads);
    if (op.kind == TM_ATTEND) {
      max_head_dim = std::max({max_head_dim, op.head_dim, op.value_dim}), max_group = std::max(max_group, group(op));
      if (std::find(kv_heads.begin(), kv_heads.end(), op.num_kv_heads) == kv_heads.end()) kv_heads.push_back(op.num_kv_heads);
    }
    const bool combines = op.kind == TM_COMBINE && op.epilogue == TM_STORE;
    stored_stride = std::max(stored_stride, rounded(combines ? shape.hidden : stored_columns(op), PAD));
    if (op.kind == TM_CONVOLVE) max_before = std::max(max_before, (op.taps - 1) * (int64_t)op.block);
    if (op.kind == TM_INPUTS) {
      inputs_stride = std::max(inputs_stride, rounded(op.outputs, PAD));
      max_head_dim = std::max(max_head_dim, op.block);
      if (op.coded) max_coded = std::max<int64_t>(max_coded, op.outputs);
    }
    if (op.kind == TM_LATENT_ROWS) max_plain = std::max<int64_t>(max_plain, op.columns);
    if (op.kind == TM_EXPAND) streams = op.streams;
    if (op.kind == TM_PAIR) given_width = op.weight ? shape.hidden : op.inputs, max_pair = op.weight ? 2 * given_width : given_width;
    if (op.kind == TM_GATE) max_gated = std::max<int64_t>(max_gated, op.outputs);
    if (op.kind == TM_GATE && op.sparse) max_kept = std::max<int64_t>(max_kept, op.outputs);
    if (op.kind == TM_ATTEND && op.gated) max_gated = std::max(max_gated, attended_width(op));
    if (op.kind == TM_NORM) max_normed = std::max<int64_t>(max_normed, op.outputs);
    (op.by_head ? max_by_head : max_chosen) = std::max(op.by_head ? max_by_head : max_chosen, op.chosen);
    max_experts = std::max(max_experts, op.experts);
  }
  first_matrix.assign(ops.size() + 1, 0);
  for (size_t i = 0; i < ops.size(); i++)
    first_matrix[i + 1] = first_matrix[i] + (ops[i].kind == TM_LINEAR ? std::max(1, ops[i].experts) : 0);
  next_attention.resize(ops.size() + 1);
  for (size_t i = ops.size(); i-- > 0;) next_attention[i] = ops[i].kind == TM_ATTEND ? &ops[i] : next_attention[i + 1];
}

// A buffer holds every format that a linear reads from it. Rows of TM_GATHERED are copies of rows of another buffer, which
// therefore has the same formats.
void Model::lay_out_buffers() {
  for (const TmOp& op : ops) {
    if (op.kind != TM_LINEAR) continue;
    BufferLayout& layout = buffers[op.from];
    layout.width = std::max(layout.width, op.inputs);
    for (int i = 0; i < op.num_units; i++) {
      if (!op.units[i].data) continue;
      layout.formats |= 1 << format_of(op.units[i].scheme);
      if (op.units[i].gate) layout.formats |= 1 << format_of(op.units[i].gate_scheme);
    }
  }
  for (const TmOp& op : ops) {
    if (op.kind == TM_CHOOSE) buffers[op.from].formats |= buffers[TM_GATHERED].formats;
    if (op.epilogue == TM_ACTIVATED && op.to == TM_LATENT) buffers[op.to].width = std::max(buffers[op.to].width, op.outputs);
  }
}

// Each thread gets units of about the same number of bytes, in the order in which they lie in memory. It is not known yet which
// experts a step chooses, so that each thread gets the same share of every expert: the shares hold units of one expert.
std::vector<std::vector<int>> Model::divide(const TmOp& op) const {
  std::vector<int> own;
  std::vector<int64_t> cost;
  for (int i = 0; i < op.num_units / std::max(1, op.experts); i++)
    if (op.units[i].data) own.push_back(i), cost.push_back(unit_bytes(op, op.units[i]));
  if (!op.experts && std::any_of(cost.begin(), cost.end(), [&](int64_t bytes) { return bytes != cost[0]; }))
    return divide_by_cost(own, cost);
  std::vector<std::vector<int>> units((size_t)shape.num_threads);  // equal units: one contiguous stretch of memory per thread
  for (size_t i = 0; i < own.size(); i++) units[i * (size_t)shape.num_threads / own.size()].push_back(own[i]);
  return units;
}

// Units of different size: the largest first, each to the thread with the fewest bytes so far.
std::vector<std::vector<int>> Model::divide_by_cost(const std::vector<int>& own, const std::vector<int64_t>& cost) const {
  std::vector<std::vector<int>> units((size_t)shape.num_threads);
  std::vector<int64_t> loads((size_t)shape.num_threads, 0);
  std::vector<size_t> order(cost.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return cost[a] > cost[b]; });
  for (size_t i : order) {
    const size_t thread = (size_t)(std::min_element(loads.begin(), loads.end()) - loads.begin());
    units[thread].push_back(own[i]), loads[thread] += cost[i];
  }
  for (auto& list : units) std::sort(list.begin(), list.end());
  return units;
}
