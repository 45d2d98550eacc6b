// A valid problem, or a valid expert MLP, and a way to compute it, as text and back, and made smaller.
#ifndef RAGGEMM_TESTS_FUZZ_FUZZ_CASE_H_
#define RAGGEMM_TESTS_FUZZ_FUZZ_CASE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "raggemm/plan.h"
#include "tests/support/field_text.h"
#include "tests/support/problem_spec.h"
#include "tests/support/test_mlp.h"

namespace raggemm::test {

struct Way {
  Isa isa = Isa::kScalar;
  Executor executor = Executor::kSerial;
  int64_t threads = 1;
  bool plugin = false;    // the custom call, rather than the C++ library
  bool out_is_c = false;  // where there is c
};

template <typename Visit, typename SomeWay>
requires std::is_same_v<std::remove_const_t<SomeWay>, Way>
void VisitFields(SomeWay& way, Visit visit) {
  visit("isa", way.isa);
  visit("executor", way.executor);
  visit("threads", way.threads);
  visit("plugin", way.plugin);
  visit("out_is_c", way.out_is_c);
}

// As small and plain as an MLP goes, for that is what is left of one that fails.
struct PlainMlp : MlpSpec {
  PlainMlp()
      : MlpSpec{.tokens = 1,
                .hidden = 0,
                .intermediate = 0,
                .sizes = {},
                .behind = 0,
                .gate = Gate::kNone,
                .biases = false,
                .row_weights = false} {}
  explicit PlainMlp(const MlpSpec& spec) : MlpSpec(spec) {}
};

struct FuzzCase {
  ProblemSpec spec;
  Way way;
  std::optional<PlainMlp> mlp = std::nullopt;  // in place of spec
};

// One line: the fields of both that are not at their defaults, with " : " between; of an MLP "mlp " stands before them.
std::string ToText(const FuzzCase& fuzz_case);
// InvalidArgument: text that ToText does not make, or sizes and extents that do not fit together.
absl::StatusOr<FuzzCase> ParseFuzzCase(absl::string_view text);

// Any executor and number of threads.
Way RandomWay(Isa isa, Random& random);

// Whether sizes, extents and offsets are those of a valid problem.
bool IsConsistent(const ProblemSpec& spec);
bool IsConsistent(const MlpSpec& spec);

// The simplest case found for which `fails` is true, by steps that each make one thing smaller or plainer, from a case
// for which it is true; asks at most `tries` times.
FuzzCase Shrink(FuzzCase failing, absl::FunctionRef<bool(const FuzzCase&)> fails, int64_t tries);

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_FUZZ_FUZZ_CASE_H_
