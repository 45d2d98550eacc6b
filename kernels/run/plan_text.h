// Describes schedules in text.
#ifndef RAGGEMM_KERNELS_RUN_PLAN_TEXT_H_
#define RAGGEMM_KERNELS_RUN_PLAN_TEXT_H_

#include <string>

#include "kernels/plan/schedule.h"

namespace raggemm {

// Returns the text that ToString(const Plan&) returns for a plan with this schedule.
std::string ToString(const Schedule& schedule);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_RUN_PLAN_TEXT_H_
