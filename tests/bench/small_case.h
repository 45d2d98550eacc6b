// A case that takes no time, for tests of those who compute, check and time cases.
#ifndef RAGGEMM_TESTS_BENCH_SMALL_CASE_H_
#define RAGGEMM_TESTS_BENCH_SMALL_CASE_H_

#include <string>
#include <vector>

#include "bench/cases.h"

namespace raggemm::bench {

// Three groups, the middle one empty. 4 MiB of active f32 weights: many sets of operands, few enough to list.
inline Case SmallCase(Mode mode, DType in = DType::kF32, DType out = DType::kF32) {
  Case c;
  c.name = "small";
  c.mode = mode;
  c.in = in;
  c.out = out;
  c.threads = 2;
  c.k = 1024;
  c.n = 512;
  c.sizes = {3, 0, 5};
  return c;
}

// The same of every quantization, or of those that the regular expression finds.
inline std::vector<Case> QuantizedCases(const std::string& names = ".*") {
  const std::string filter = "quantized/" + names + "-.*/2048x768/rows8/threads2";
  std::vector<Case> cases = SelectCases({}, Selection::kFull, filter).value();
  for (Case& c : cases) {
    c.k = 1024;
    c.n = 512;
    c.sizes = {3, 0, 5};
  }
  return cases;
}

}  // namespace raggemm::bench

#endif  // RAGGEMM_TESTS_BENCH_SMALL_CASE_H_
