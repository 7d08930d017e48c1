// The builds of the kernels, and the choice of a build that a processor runs.
#pragma once
#include <string>
#include <vector>

#include "kernels/kernels.h"

// The builds in this library that a processor with these features runs, the best first. Features have the names that Linux gives
// them in /proc/cpuinfo, with a space between two.
std::vector<const Kernels*> builds_for(const std::string& features);
// The features of this processor that some build needs, without those whose registers the system does not save.
const std::string& processor_features();
// The build of this name, which this processor runs; without a name the choice of choose_build, or the best build. Throws
// std::runtime_error.
const Kernels& find_kernels(const std::string& name);
// From now on find_kernels returns this build where it is given no name. Throws what find_kernels throws.
void choose_build(const std::string& name);
