// The plans of the calls that are executed while somebody asks for them (raggemm_record_plans).
#ifndef RAGGEMM_FFI_PLAN_RECORDS_H_
#define RAGGEMM_FFI_PLAN_RECORDS_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "raggemm/plan.h"

namespace raggemm {

// Text of a plan, as raggemm_plan_text and the driver have it: the CPU, then the plan.
std::string PlanText(const Plan& plan);

// Counts those who asked for plans and are not done.
inline constinit std::atomic<int32_t> plan_recorders{0};

// All that a call pays while nobody asks.
inline bool RecordsPlans() { return plan_recorders.load(std::memory_order_relaxed) > 0; }

// What `plan` says, unless that is nothing. Where memory is short it is left out: nobody's call fails for being looked
// at.
void RecordPlan(absl::FunctionRef<std::string()> plan);

}  // namespace raggemm

#endif  // RAGGEMM_FFI_PLAN_RECORDS_H_
