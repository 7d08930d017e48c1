// Checks of Python's arguments, made once for a model and once for a step: every number that is used as an index lies within
// bounds. The checks cannot see how long Python's arrays are.
#pragma once
#include "abi.h"

struct Model;

// Throws std::invalid_argument with the reason.
void check_model(const TmModel& model);
void check_step(const TmModel& model, const TmStep& step);
void check_adapters(const Model& model, const TmStep& step);
