// Checks of what Python passes, made once for a model and once for a step: whatever is used as an index lies within bounds.
// They cannot see how long Python's arrays are.
#pragma once
#include "abi.h"

// std::invalid_argument with the reason.
void check_model(const TmModel& model);
void check_step(const TmModel& model, const TmStep& step);
