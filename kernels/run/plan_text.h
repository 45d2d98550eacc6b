#pragma once

#include <string>

#include "kernels/plan/schedule.h"

namespace raggemm {

// Returns the text of ToString(const Plan&).
std::string ToString(const Schedule& schedule);

}  // namespace raggemm
