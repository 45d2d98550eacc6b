#ifndef RAGGEMM_KERNELS_RUN_PLAN_TEXT_H_
#define RAGGEMM_KERNELS_RUN_PLAN_TEXT_H_

#include <string>

#include "kernels/plan/schedule.h"

namespace raggemm {

// Returns the text of ToString(const Plan&).
std::string ToString(const Schedule& schedule);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_RUN_PLAN_TEXT_H_
