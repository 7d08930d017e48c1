// The table of kernels for one instruction set. This file is compiled once per instruction set, with TM_BUILD naming it, and
// includes everything that depends on it.
//
// The order of every sum follows from the model's shape alone: inputs in order, lanes reduced in one fixed way. A row has the
// same bits whether it is computed alone or beside 511 others, so that neither batches nor chunks can change a result.
#include "kernels/kernels.h"

#include "attention/attend.h"
#include "products/products.h"
#include "kernels/begin_step.h"
#include "kernels/fit_grid.h"
#include "kernels/low_rank.h"
#include "kernels/quantize.h"
#include "kernels/round_group.h"
#include "kernels/rows.h"
#include "kernels/sample.h"
#include "kernels/score.h"
#include "kernels/states.h"

#define TM_JOIN2(a, b) a##b
#define TM_JOIN(a, b) TM_JOIN2(a, b)
#define TM_TEXT2(a) #a
#define TM_TEXT(a) TM_TEXT2(a)

#if defined(TM_AMX)
#define TM_BFLOAT16_PRODUCT bfloat_product_amx
#else
#define TM_BFLOAT16_PRODUCT product<Bfloat16Weights>
#endif

extern "C" const Kernels TM_JOIN(kernels_, TM_BUILD) = {
    TM_TEXT(TM_BUILD),
    begin_step,
    end_step,
    {
        product<FloatWeights<float>>,                        // FLOAT32
        TM_BFLOAT16_PRODUCT,
        product<FloatWeights<uint16_t>>,                     // FLOAT16
        product<IntegerWeights<8, 64>>,                      // Q8
        product<IntegerWeights<4, 64>>,                      // Q4
        product<IntegerWeights<4, 128, true>>,               // Q4_MIN
        product<IntegerWeights<4, 256, true, true>>,         // Q4_WIDE
        product<IntegerWeights<4, 64, true, false, true>>,   // Q4_PAIR
        product<IntegerWeights<8, 128, false, true>>,        // Q8_WIDE
        product<IntegerWeights<5, 256, true, true>>,         // Q5_WIDE
        product<IntegerWeights<6, 128>>,                    // Q6_HALVES
        product<IntegerWeights<5, 128, true>>,               // Q5_MIN
        product<IntegerWeights<4, 128, true, false, false, true>>,  // Q4_INTS
        product<IntegerWeights<5, 128, true, false, false, true>>,  // Q5_INTS
        product<IntegerWeights<4, 64, true, false, false, true, true>>,  // Q4_SUPER
        product<IntegerWeights<5, 64, true, false, false, true, true>>,  // Q5_SUPER
        product<IntegerWeights<6, 64, false, false, false, false, true>>,  // Q6_SUPER
    },
    convert,
    norm,
    activate,
    rotate,
    softcap,
    attend,
    store_kv,
    merge,
    add_rows,
    add_weighted,
    lower,
    raise,
    convolve,
    recur,
    argmax,
    sample,
    score,
    fit_grid,
    round_group,
};
