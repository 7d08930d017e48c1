// tm_layout: where the compiler has put each field of the structs of abi.h. Python compares it with its own structs.
#include <cstddef>
#include <string>

#include "abi.h"

namespace {

void add(std::string& text, const char* name, size_t offset, size_t size) {
  text += std::string(name) + " " + std::to_string(offset) + " " + std::to_string(size) + "\n";
}

// A line for the struct itself, "TmUnit 0 32", and a line for each of its fields, "TmUnit.data 0 8".
std::string layout() {
  std::string text;
#define STRUCT(type) add(text, #type, 0, sizeof(type));
#define FIELD(type, name) add(text, #type "." #name, offsetof(type, name), sizeof(((type*)nullptr)->name));
  STRUCT(TmUnit)
  FIELD(TmUnit, data) FIELD(TmUnit, gate) FIELD(TmUnit, scheme) FIELD(TmUnit, gate_scheme) FIELD(TmUnit, first)
  FIELD(TmUnit, count)
  STRUCT(TmOp)
  FIELD(TmOp, kind) FIELD(TmOp, epilogue) FIELD(TmOp, activation) FIELD(TmOp, centred) FIELD(TmOp, from) FIELD(TmOp, to)
  FIELD(TmOp, inputs) FIELD(TmOp, outputs) FIELD(TmOp, num_units) FIELD(TmOp, scheme)
  FIELD(TmOp, num_kv_heads) FIELD(TmOp, head_dim) FIELD(TmOp, value_dim) FIELD(TmOp, kv_parts) FIELD(TmOp, of_inputs) FIELD(TmOp, by_head) FIELD(TmOp, rotary) FIELD(TmOp, norm_scope) FIELD(TmOp, norms_after_rope)
  FIELD(TmOp, gated) FIELD(TmOp, column) FIELD(TmOp, gate) FIELD(TmOp, block) FIELD(TmOp, taps) FIELD(TmOp, unit_blocks)
  FIELD(TmOp, query) FIELD(TmOp, key) FIELD(TmOp, value) FIELD(TmOp, decay) FIELD(TmOp, strength) FIELD(TmOp, heads)
  FIELD(TmOp, key_heads) FIELD(TmOp, key_dim) FIELD(TmOp, columns) FIELD(TmOp, gate_first) FIELD(TmOp, decays)
  FIELD(TmOp, sparse) FIELD(TmOp, streams) FIELD(TmOp, stream) FIELD(TmOp, rows) FIELD(TmOp, coded)
  FIELD(TmOp, units) FIELD(TmOp, weight) FIELD(TmOp, bias) FIELD(TmOp, factors) FIELD(TmOp, router) FIELD(TmOp, coefficients)
  FIELD(TmOp, input_norm) FIELD(TmOp, q_norm) FIELD(TmOp, k_norm)
  FIELD(TmOp, v_norm)
  FIELD(TmOp, q_norm_bias) FIELD(TmOp, k_norm_bias) FIELD(TmOp, cosines) FIELD(TmOp, sines) FIELD(TmOp, temperatures)
  FIELD(TmOp, sinks) FIELD(TmOp, distance_bias) FIELD(TmOp, correction) FIELD(TmOp, expert_scales) FIELD(TmOp, biases) FIELD(TmOp, table) FIELD(TmOp, positions) FIELD(TmOp, k_rows)
  FIELD(TmOp, v_rows) FIELD(TmOp, k_scales) FIELD(TmOp, v_scales) FIELD(TmOp, a_log) FIELD(TmOp, dt_bias)
  FIELD(TmOp, skip) FIELD(TmOp, state) FIELD(TmOp, eps) FIELD(TmOp, scale) FIELD(TmOp, rescale) FIELD(TmOp, softcap)
  FIELD(TmOp, act_a) FIELD(TmOp, act_b) FIELD(TmOp, cutoff) FIELD(TmOp, min_step) FIELD(TmOp, max_step) FIELD(TmOp, clip)
  FIELD(TmOp, margin)
  FIELD(TmOp, window) FIELD(TmOp, experts) FIELD(TmOp, chosen) FIELD(TmOp, normalise)
  FIELD(TmOp, sigmoid) FIELD(TmOp, groups) FIELD(TmOp, chosen_groups) FIELD(TmOp, group_best) FIELD(TmOp, shared)
  FIELD(TmOp, on_inputs) FIELD(TmOp, within_margin) FIELD(TmOp, both_ways)
  STRUCT(TmModel)
  FIELD(TmModel, hidden)
  FIELD(TmModel, intermediate) FIELD(TmModel, vocab) FIELD(TmModel, cache_format) FIELD(TmModel, ops) FIELD(TmModel, num_ops) FIELD(TmModel, num_threads)
  FIELD(TmModel, build) FIELD(TmModel, num_positions) FIELD(TmModel, num_slots) FIELD(TmModel, num_states)
  FIELD(TmModel, rank) FIELD(TmModel, num_ranks) FIELD(TmModel, max_tokens)
  FIELD(TmModel, num_processors) FIELD(TmModel, processor_nodes) FIELD(TmModel, thread_nodes) FIELD(TmModel, shared)
  STRUCT(TmChange)
  FIELD(TmChange, first) FIELD(TmChange, count) FIELD(TmChange, rank) FIELD(TmChange, at) FIELD(TmChange, unit)
  FIELD(TmChange, type) FIELD(TmChange, scale) FIELD(TmChange, a) FIELD(TmChange, b) FIELD(TmChange, factors)
  FIELD(TmChange, bias)
  STRUCT(TmNorm)
  FIELD(TmNorm, before) FIELD(TmNorm, after)
  STRUCT(TmAdapter)
  FIELD(TmAdapter, changes) FIELD(TmAdapter, firsts) FIELD(TmAdapter, num_matrices) FIELD(TmAdapter, max_lowered)
  FIELD(TmAdapter, rank) FIELD(TmAdapter, type) FIELD(TmAdapter, scale) FIELD(TmAdapter, table) FIELD(TmAdapter, a)
  FIELD(TmAdapter, b) FIELD(TmAdapter, rows) FIELD(TmAdapter, ids) FIELD(TmAdapter, num_ids)
  FIELD(TmAdapter, norms) FIELD(TmAdapter, num_norms) FIELD(TmAdapter, in_ranks)
  STRUCT(TmSave)
  FIELD(TmSave, count) FIELD(TmSave, slot)
  STRUCT(TmSpan)
  FIELD(TmSpan, first) FIELD(TmSpan, count) FIELD(TmSpan, start) FIELD(TmSpan, base) FIELD(TmSpan, slots)
  FIELD(TmSpan, state) FIELD(TmSpan, first_save) FIELD(TmSpan, num_saves) FIELD(TmSpan, adapter)
  STRUCT(TmStep)
  FIELD(TmStep, num_tokens) FIELD(TmStep, num_spans) FIELD(TmStep, num_rows) FIELD(TmStep, num_stops) FIELD(TmStep, tokens)
  FIELD(TmStep, positions) FIELD(TmStep, slots) FIELD(TmStep, rows) FIELD(TmStep, spans) FIELD(TmStep, saves) FIELD(TmStep, stops)
  FIELD(TmStep, logits) FIELD(TmStep, given) FIELD(TmStep, hidden) FIELD(TmStep, places)
  STRUCT(TmSample)
  FIELD(TmSample, words) FIELD(TmSample, num_words) FIELD(TmSample, temperature) FIELD(TmSample, top_p)
  FIELD(TmSample, uniform) FIELD(TmSample, log_min_p) FIELD(TmSample, top_k) FIELD(TmSample, token) FIELD(TmSample, total)
  FIELD(TmSample, largest) FIELD(TmSample, admitted)
  STRUCT(TmScore)
  FIELD(TmScore, token) FIELD(TmScore, rank) FIELD(TmScore, total) FIELD(TmScore, largest)
#undef STRUCT
#undef FIELD
  return text;
}

}  // namespace

extern "C" const char* tm_layout(void) {
  static const std::string text = layout();
  return text.c_str();
}
