// The embedding: rows of a table in float32 or bfloat16, or of tiles of codes, which a tied head shares.
#include <cmath>

#include "products/tile_bytes.h"
#include "step/worker.h"

namespace {

float from_bfloat(uint16_t number) {
  const uint32_t bits = (uint32_t)number << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

// To the nearest bfloat16, to the even one of two that are as near.
float rounded_to_bfloat(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  if (std::isnan(value)) return value;
  return from_bfloat((uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16));
}

float from_half(uint16_t number) {
  const uint32_t exponent = (number >> 10) & 31, mantissa = number & 1023;
  const float value = exponent == 0    ? (float)mantissa * 5.9604644775390625e-8f
                      : exponent == 31 ? (mantissa ? NAN : INFINITY)
                                       : std::ldexp((float)(mantissa | 1024), (int)exponent - 25);
  return number & 0x8000 ? -value : value;
}

float table_entry(const void* table, int scheme, int64_t at) {
  return scheme == FLOAT32 ? ((const float*)table)[at] : from_bfloat(((const uint16_t*)table)[at]);
}

// One row of tiles of codes, as products/products.h lays them out: for each 64 inputs a header with the scales of both groups,
// then their minimums, then the codes, four inputs of 16 rows beside each other.
struct CodedRow {
  const uint8_t* tile;
  int scheme, lane;

  float number(const uint8_t* header, int at) const {
    return scheme == Q4_WIDE ? ((const float*)header)[at] : from_half(((const uint16_t*)header)[at]);
  }
  int code(const uint8_t* codes, int group, int i) const {
    if (scheme == Q8) return codes[group * 512 + (i / 4) * 64 + lane * 4 + i % 4];
    const uint8_t both = codes[group * 256 + (i % 16) / 4 * 64 + lane * 4 + i % 4];
    return i < 16 ? both & 15 : both >> 4;
  }
  void read(float* row, int width) const {
    const bool has_minimums = scheme >= Q4_MIN;
    const int zero = scheme == Q8 ? 128 : 8, groups = scheme == Q4_PAIR ? 1 : 2;
    const int64_t block = tile_bytes(scheme, PAD), header = block - (scheme == Q8 ? 1024 : 512);
    for (int k = 0; k < width; k++) {
      const uint8_t* at = tile + k / PAD * block;
      const int group = k % PAD / GROUP, place = (groups == 1 ? 0 : group) * TILE + lane;
      const float scale = number(at, place);
      const int value = code(at + header, group, k % GROUP);
      row[k] = has_minimums ? (float)value * scale + number(at, groups * TILE + place) : (float)(value - zero) * scale;
    }
  }
};

}  // namespace

void Worker::embed(const TmOp& op) {
  const TmStep& step = *plan_.step;
  const int hidden = model_.shape.hidden;
  const auto [from, to] = share(step.num_tokens);
  for (int t = from; t < to; t++) {
    float* row = residual(t);
    embed_token(op, step.tokens[t], row);
    if (op.scale != 1)
      for (int i = 0; i < hidden; i++) row[i] *= op.scale;
    if (op.positions)
      for (int i = 0; i < hidden; i++) row[i] += table_entry(op.positions, op.scheme, step.positions[t] * hidden + i);
  }
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
  if (op.scheme == BFLOAT16)
    for (int i = 0; i < hidden; i++) row[i] = rounded_to_bfloat(row[i]);
}
