// The arithmetic of one row or one tile. Compiled once per instruction set, with TM_BUILD naming the build.
//
// The order of every sum follows from the model's shape alone: along K in order, lanes folded in one fixed way. A row's
// result is the same whether it is computed alone or beside 511 others, so batches and chunks cannot change a bit.
#include "kernels.h"

#include "attend.h"
#include "products.h"
#include "rows.h"

#define TM_JOIN2(a, b) a##b
#define TM_JOIN(a, b) TM_JOIN2(a, b)
#define TM_TEXT2(a) #a
#define TM_TEXT(a) TM_TEXT2(a)

extern "C" const Kernels TM_JOIN(kernels_, TM_BUILD) = {
    TM_TEXT(TM_BUILD), begin_step, end_step,
    {any_float, any_bfloat, any_q8, any_q4, any_q4_min, any_q4_wide, any_q4_pair},
    put, norm, activate, rotate, softcap, attend, cache_row, merge, add_to, place_of_largest,
};
