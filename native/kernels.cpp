// The arithmetic of one row or one tile. Compiled once per instruction set, with TM_BUILD naming the build.
//
// The order of every sum follows from the model's shape alone: along K in order, lanes folded in one fixed way. A row's
// result is the same whether it is computed alone or beside 511 others, so batches and chunks cannot change a bit.
#include "kernels.h"

#include "attend.h"
#include "products.h"
#include "rounding.h"
#include "rows.h"

#define TM_JOIN2(a, b) a##b
#define TM_JOIN(a, b) TM_JOIN2(a, b)
#define TM_TEXT2(a) #a
#define TM_TEXT(a) TM_TEXT2(a)

#if defined(TM_AMX)
#define TM_BFLOATS bfloat_matrix
#else
#define TM_BFLOATS product<Bfloats>
#endif

extern "C" const Kernels TM_JOIN(kernels_, TM_BUILD) = {
    TM_TEXT(TM_BUILD), begin_step, end_step,
    {product<Floats>, TM_BFLOATS, product<Codes<8, 64>>, product<Codes<4, 64>>, product<Codes<4, 128, true>>,
     product<Codes<4, 256, true, true>>, product<Codes<4, 64, true, false, true>>},
    put, norm, activate, rotate, softcap, attend, cache_row, merge, add_to, place_of_largest,
};
