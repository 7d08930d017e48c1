// Rows, or tokens, that a kernel takes several at a time, so that their sums stay in registers.
#pragma once
#include <type_traits>

#include "vector/vector.h"

namespace {

// Calls run(n, row), where n is a constant, for MOST rows at a time, of which there are at most four, and for the rows that are left.
template <int MOST, class Run> TM_INLINE void in_rows(int rows, const Run& run) {
  static_assert(MOST <= 4, "at most three rows are left");
  int r = 0;
  for (; r + MOST <= rows; r += MOST) run(std::integral_constant<int, MOST>(), r);
  if (rows - r == 3) run(std::integral_constant<int, MOST < 3 ? MOST : 3>(), r);
  if (rows - r == 2) run(std::integral_constant<int, MOST < 2 ? MOST : 2>(), r);
  if (rows - r == 1) run(std::integral_constant<int, 1>(), r);
}

}  // namespace
