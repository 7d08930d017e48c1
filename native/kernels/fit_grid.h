// The search for the grids of quantised weights: values code * scale + minimum with the smallest error. quant/grid.py describes
// it and computes the same bits. Sixteen rows of a matrix are searched at once, one in each lane, so that every sum is over the
// inputs in order. Included by kernels.cpp, once per instruction set.
#pragma once
#include "kernels/kernels.h"
#include "vector/vector.h"

namespace {

struct Grid {
  F scales, minimums;
};

// The figures of one grid: the weighted squared error; and weighted sums of the steps from its zero, their squares, the numbers,
// and the products of both. The zero is code 0 where the minimum is free.
struct GridSums {
  F error, steps, squares, numbers, products;
};

// The numbers of a group, [inputs, TILE], and the weight of an error of each input.
struct GridGroup {
  const float* numbers;
  const float* weights;
  int inputs;
  F highest;  // code
};

TM_INLINE F grid_divisor(F a) { return where_less(set1(0), abs(a), a, set1(1)); }  // 1 for 0
TM_INLINE F grid_half(F a) { return to_half(min(max(a, set1(-65504)), set1(65504))); }
TM_INLINE F negative(F a) { return mul(a, set1(-1)); }
TM_INLINE F grid_code(F a, F lowest, F highest) { return min(max(round(a), lowest), highest); }

template <bool FREE> GridSums evaluate(const GridGroup& group, const Grid& grid, F zeros) {
  const F zero = set1(0), divisor = grid_divisor(grid.scales);
  GridSums sums{zero, zero, zero, zero, zero};
  for (int i = 0; i < group.inputs; i++) {
    const F x = load(group.numbers + (int64_t)i * TILE), weight = set1(group.weights[i]);
    const F code = grid_code(div(sub(x, grid.minimums), divisor), zero, group.highest);
    const F error = sub(add(mul(code, grid.scales), grid.minimums), x);
    const F step = FREE ? code : sub(code, zeros), weighted = mul(step, weight);
    sums.error = add(sums.error, mul(mul(error, error), weight));
    sums.squares = add(sums.squares, mul(weighted, step));
    sums.products = add(sums.products, mul(weighted, x));
    if (FREE) sums.steps = add(sums.steps, weighted), sums.numbers = add(sums.numbers, mul(x, weight));
  }
  return sums;
}

// The grid that fits the codes of `grid` best, by least squares.
template <bool FREE> Grid refitted(const GridSums& sums, const Grid& grid, F zeros, F total) {
  if (!FREE) {
    const F found = grid_half(div(sums.products, grid_divisor(sums.squares)));
    const F scales = where_less(set1(0), sums.squares, found, grid.scales);
    return {scales, mul(negative(zeros), scales)};
  }
  const F determinant = sub(mul(total, sums.squares), mul(sums.steps, sums.steps)), divisor = grid_divisor(determinant);
  const F scales = div(sub(mul(total, sums.products), mul(sums.steps, sums.numbers)), divisor);
  const F minimums = div(sub(mul(sums.squares, sums.numbers), mul(sums.steps, sums.products)), divisor);
  const F least = mul(mul(total, set1(1e-6f)), sums.squares);
  return {where_less(least, determinant, grid_half(scales), grid.scales),
          where_less(least, determinant, grid_half(minimums), grid.minimums)};
}

constexpr int GRID_REFITS = 3;

struct BestGrid {
  Grid grid;
  F error;
  bool found;
};

template <bool FREE> void search(const GridGroup& group, Grid grid, F total, BestGrid& best) {
  for (int refit = 0; refit <= GRID_REFITS; refit++) {
    const F zeros = FREE ? set1(0) : round(div(negative(grid.minimums), grid_divisor(grid.scales)));
    const GridSums sums = evaluate<FREE>(group, grid, zeros);
    if (!best.found) {
      best = {grid, sums.error, true};
    } else {
      best.grid.scales = where_less(sums.error, best.error, grid.scales, best.grid.scales);
      best.grid.minimums = where_less(sums.error, best.error, grid.minimums, best.grid.minimums);
      best.error = where_less(sums.error, best.error, sums.error, best.error);
    }
    if (refit < GRID_REFITS) grid = refitted<FREE>(sums, grid, zeros, total);
  }
}

Grid fit_group(const GridGroup& group, int kind, F total) {
  constexpr float CUTS[] = {0.0f, 0.06f, 0.12f};
  constexpr double FACTORS[] = {1.0, 0.94, 0.88, 0.82, 0.76};
  const F zero = set1(0), levels = group.highest;
  F low = load(group.numbers), high = low;
  for (int i = 1; i < group.inputs; i++) {
    const F x = load(group.numbers + (int64_t)i * TILE);
    low = min(low, x), high = max(high, x);
  }
  BestGrid best{{zero, zero}, zero, false};
  if (kind == GRID_SYMMETRIC) {
    alignas(64) float highest[TILE];
    store(highest, levels);
    const float middle = (highest[0] + 1) / 2;
    const F largest = where_less(high, negative(low), low, high);
    for (const double factor : FACTORS) {
      const F scales = grid_half(mul(largest, set1((float)(-factor / middle))));
      search<false>(group, {scales, mul(set1(-middle), scales)}, total, best);
    }
    return best.grid;
  }
  if (kind == GRID_ZERO_POINT) low = min(low, zero), high = max(high, zero);
  const F range = sub(high, low);
  for (const float cut_low : CUTS)
    for (const float cut_high : CUTS) {
      const F first = add(low, mul(range, set1(cut_low))), last = sub(high, mul(range, set1(cut_high)));
      const F scales = grid_half(div(sub(last, first), levels));
      if (kind == GRID_MINIMUM) {
        search<true>(group, {scales, grid_half(first)}, total, best);
      } else {
        const F zeros = grid_code(div(negative(first), grid_divisor(scales)), set1(1), levels);
        search<false>(group, {scales, mul(negative(zeros), scales)}, total, best);
      }
    }
  return best.grid;
}

// The first `count` of [inputs, rows] as lanes [inputs, TILE], with zeros behind them.
void to_lanes(const float* numbers, int64_t rows, int inputs, int64_t count, float* lanes) {
  for (int i = 0; i < inputs; i++)
    for (int64_t r = 0; r < TILE; r++) lanes[i * TILE + r] = r < count ? numbers[i * rows + r] : 0;
}

void fit_grid(const float* numbers, int64_t rows, int inputs, int bits, int kind, const float* weights, float* scratch,
              float* scales, float* minimums) {
  float total = 0;
  for (int i = 0; i < inputs; i++) total += weights[i];
  const GridGroup group{scratch, weights, inputs, set1((float)((1 << bits) - 1))};
  for (int64_t row = 0; row < rows; row += TILE) {
    const int64_t count = rows - row < TILE ? rows - row : (int64_t)TILE;
    to_lanes(numbers + row, rows, inputs, count, scratch);
    const Grid found = fit_group(group, kind, set1(total));
    alignas(64) float lanes[2 * TILE];
    store(lanes, found.scales), store(lanes + TILE, found.minimums);
    memcpy(scales + row, lanes, (size_t)count * sizeof(float));
    memcpy(minimums + row, lanes + TILE, (size_t)count * sizeof(float));
  }
}

}  // namespace
