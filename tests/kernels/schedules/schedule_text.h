// All that was decided of a call, as text.
#ifndef RAGGEMM_TESTS_KERNELS_SCHEDULES_SCHEDULE_TEXT_H_
#define RAGGEMM_TESTS_KERNELS_SCHEDULES_SCHEDULE_TEXT_H_

#include <string>

#include "kernels/moe_mlp.h"
#include "kernels/schedule.h"

namespace raggemm::test {

// "avx2, 192x512, 8 threads, 24 + 0 tiles, sweep of 256x768"
std::string Summary(const Schedule& plan);
// ToString with what it leaves out: costs of units, windows and blocks of tiles, what is fetched beside them, memory.
std::string ScheduleText(const Schedule& plan);
// What an instruction set has for an arithmetic: tiles, layouts, and for each format which kernels there are.
std::string KernelsText(const KernelRow& row);
// Names the expanders in the same way, for each quantized format.
std::string ExpandersText(const Expanders& expanders);
// Offsets in the workspace of an expert MLP.
std::string BuffersText(const MoeMlpExtents& extents, bool is_backward);

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_KERNELS_SCHEDULES_SCHEDULE_TEXT_H_
