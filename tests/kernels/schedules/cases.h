// Problems whose schedules are recorded.
#ifndef RAGGEMM_TESTS_KERNELS_SCHEDULES_CASES_H_
#define RAGGEMM_TESTS_KERNELS_SCHEDULES_CASES_H_

#include <string>
#include <vector>

#include "tests/support/problem_spec.h"

namespace raggemm::test {

// A call to plan. Cases of one name follow each other, and have one line.
struct ScheduleCase {
  std::string name;
  ProblemSpec spec;
  int pool_threads = 0;   // 0: serial
  bool each_cpu = false;  // a line for each CPU, which has a name of its own then
};
std::vector<ScheduleCase> ScheduleCases();

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_KERNELS_SCHEDULES_CASES_H_
