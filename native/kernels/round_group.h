// Rounds the weights of a group input by input, and compensates each error in the inputs that are not rounded yet, as
// quant/gptq.py does with the same bits. Sixteen rows of a matrix at once, one in each lane. Included by kernels.cpp, once per
// instruction set.
#pragma once
#include "kernels/fit_grid.h"

namespace {

void round_group(const float* numbers, int64_t rows, int inputs, int bits, const float* scales, const float* minimums,
                 const float* factor, float* scratch, uint8_t* codes, float* errors) {
  const F zero = set1(0), highest = set1((float)((1 << bits) - 1));
  alignas(64) float lanes[TILE];
  for (int64_t row = 0; row < rows; row += TILE) {
    const int64_t count = rows - row < TILE ? rows - row : TILE;
    to_lanes(numbers + row, rows, inputs, count, scratch);
    to_lanes(scales + row, rows, 1, count, lanes);
    const F scale = load(lanes), divisor = grid_divisor(scale);
    to_lanes(minimums + row, rows, 1, count, lanes);
    const F minimum = load(lanes);
    for (int i = 0; i < inputs; i++) {
      const float* factors = factor + (int64_t)i * inputs;
      const F x = load(scratch + (int64_t)i * TILE);
      const F code = grid_code(div(sub(x, minimum), divisor), zero, highest);
      const F error = div(sub(x, add(mul(code, scale), minimum)), set1(factors[i]));
      for (int j = i + 1; j < inputs; j++) {
        float* other = scratch + (int64_t)j * TILE;
        store(other, sub(load(other), mul(set1(factors[j]), error)));
      }
      store(lanes, code);
      for (int64_t r = 0; r < count; r++) codes[i * rows + row + r] = (uint8_t)lanes[r];
      store(lanes, error);
      memcpy(errors + i * rows + row, lanes, (size_t)count * sizeof(float));
    }
  }
}

}  // namespace
