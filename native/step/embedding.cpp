// The embedding: rows of a table in float32, bfloat16 or float16, or of tiles of codes, which a tied head shares.
#include <cmath>

#include "products/tile_bytes.h"
#include "kernels/coded_table.h"
#include "step/worker.h"
#include "vector/half.h"

namespace {

float from_bfloat(uint16_t number) {
  const uint32_t bits = (uint32_t)number << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

// Rounds to the nearest bfloat16, ties to even.
float rounded_to_bfloat(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  if (std::isnan(value)) return value;
  return from_bfloat((uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16));
}

void round_to_type(float* row, int count, int scheme) {
  if (scheme == BFLOAT16)
    for (int i = 0; i < count; i++) row[i] = rounded_to_bfloat(row[i]);
  if (scheme == FLOAT16)
    for (int i = 0; i < count; i++) row[i] = half_value(half_bits(row[i]));
}

// One row of tiles of codes, as products/products.h lays them out: for each 64 inputs a header with the scales of both groups,
// then their minimums, then the codes, four inputs of 16 rows beside each other. Scales of 256 inputs may lie before their blocks.
struct CodedRow {
  const uint8_t* tile;
  int scheme, lane;

  bool has_integers() const { return scheme == Q4_INTS || scheme == Q5_INTS || scheme == Q4_SUPER || scheme == Q5_SUPER; }
  bool has_factors() const { return scheme == Q6_HALVES || scheme == Q6_SUPER; }
  float integer(const uint8_t* head, const int8_t* integers, int group, int is_minimum) const {
    return half_value(((const uint16_t*)head)[is_minimum * TILE + lane]) * (float)integers[32 * group + TILE * is_minimum + lane];
  }
  float number(const uint8_t* header, int at) const {
    const bool wide = scheme == Q4_WIDE || scheme == Q5_WIDE || scheme == Q8_WIDE;
    return wide ? ((const float*)header)[at] : half_value(((const uint16_t*)header)[at]);
  }
  int code(const uint8_t* codes, int group, int i) const {
    const int bits = code_bits(), quad = i % 16 / 4, place = lane * 4 + i % 4;
    const uint8_t* at = codes + group * 64 * bits + place;
    if (bits == 8) return at[i / 4 * 64];
    const uint8_t both = at[(bits - 4 + quad) * 64];
    const int nibble = i < 16 ? both & 15 : both >> 4;
    if (bits == 5) return nibble | (at[0] >> (quad + (i < 16 ? 0 : 4)) & 1) << 4;
    if (bits == 6) return nibble | (at[quad / 2 * 64] >> (quad % 2 * 2 + (i < 16 ? 0 : 4)) & 3) << 4;
    return nibble;
  }
  int code_bits() const {
    switch (scheme) {
      case Q8: case Q8_WIDE: return 8;
      case Q5_MIN: case Q5_WIDE: case Q5_INTS: case Q5_SUPER: return 5;
      case Q6_HALVES: case Q6_SUPER: return 6;
      default: return 4;
    }
  }
  void read(float* row, int width) const {
    const bool has_minimums = scheme >= Q4_MIN && scheme != Q8_WIDE && !has_factors(), shares = is_super(scheme);
    const int bits = code_bits(), zero = 1 << (bits - 1), groups = scheme == Q4_PAIR || shares ? 1 : 2;
    const int block = (int)tile_bytes(scheme, PAD);  // without a head
    for (int k = 0; k < width; k++) {
      const uint8_t* codes = tile + block_at(k / PAD, block, shares) + block - 128 * bits;
      const uint8_t* scales = tile + (shares ? head_at(k / PAD, block) : block_at(k / PAD, block, false));
      const int8_t* integers = (const int8_t*)codes - 64;
      const int group = k % PAD / GROUP, place = (groups == 1 ? 0 : group) * TILE + lane;
      const float scale = has_integers() ? integer(scales, integers, group, 0) : number(scales, place);
      const int factor = has_factors() ? integers[k % PAD / 16 * TILE + lane] : 1;
      const int value = code(codes, group, k % GROUP);
      const float minimum = has_integers() ? integer(scales, integers, group, 1) : has_minimums ? number(scales, groups * TILE + place) : 0;
      row[k] = has_minimums ? (float)value * scale + minimum : (float)((value - zero) * factor) * scale;
    }
  }
};

}  // namespace

float Worker::table_entry(const void* table, int scheme, int64_t at) {
  if (scheme == FLOAT32) return ((const float*)table)[at];
  const uint16_t bits = ((const uint16_t*)table)[at];
  return scheme == FLOAT16 ? half_value(bits) : from_bfloat(bits);
}

void Worker::embed(const TmOp& op) {
  const TmStep& step = *plan_.step;
  const int hidden = model_.shape.hidden;
  const auto [from, to] = share_of(step.num_tokens, own_thread_, threads_.count());
  for (int t = from; t < to; t++) {
    float* row = residual(t);
    const int64_t token = op.bias ? step.tokens[t] % op.outputs : step.tokens[t];
    if (!embeds(op, token)) continue;
    embed_token(op, token, row);
    if (plan_.adapted && plan_.adapter_of(t)) change_embedding(*plan_.adapter_of(t), token, row);
    if (op.weight) kernels_.norm(row, row, hidden, own(op.weight, t), nullptr, op.eps, op.centred);
    if (op.scale != 1)
      for (int i = 0; i < hidden; i++) row[i] *= op.scale;
    if (op.positions)
      for (int i = 0; i < hidden; i++) row[i] += table_entry(op.positions, op.scheme, step.positions[t] * hidden + i);
    if (op.bias) kernels_.add(row, op.bias + step.tokens[t] / op.outputs * hidden, hidden);
  }
}

// Whether this rank looks the token up: it has the unit of the token's row, or it is rank 0, which has the table.
bool Worker::embeds(const TmOp& op, int64_t token) const {
  return op.table || (op.units && op.units[token / GROUP].data);
}

void Worker::embed_token(const TmOp& op, int64_t token, float* row) const {
  const int hidden = model_.shape.hidden;
  if (op.table) {
    for (int i = 0; i < hidden; i++) row[i] = table_entry(op.table, op.scheme, token * hidden + i);
    return;
  }
  const TmUnit& unit = op.units[token / GROUP];
  const int tile = (int)(token % GROUP) / TILE;
  CodedRow{unit.data + tile * tile_bytes(unit.scheme, hidden), unit.scheme, (int)(token % TILE)}.read(row, hidden);
  round_to_type(row, hidden, op.scheme);
}

// A row of a table of codes, in the file's mapping.
const float* Worker::decode_inputs(const TmOp& op, int64_t token) {
  const int64_t bytes = (int64_t)op.outputs / block_numbers(op.coded) * block_bytes(op.coded);
  float* row = scratch_.decoded.get();
  decode_row((const uint8_t*)op.table + token * bytes, op.coded, op.outputs, row);
  round_to_type(row, op.outputs, op.scheme);
  return row;
}
