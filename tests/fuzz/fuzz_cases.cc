// libFuzzer: text of GroupedGemmCases. Each is read or refused with a place; each case that is read is made and called
// as the driver does, where it is small enough, and gives the right result or a defined error.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ffi/handlers.h"
#include "proto/read_cases.h"
#include "tests/fuzz/fuzz_call.h"
#include "tests/host/case_problem.h"
#include "tests/host/problem_call.h"

namespace raggemm::test {
namespace {

constexpr int64_t kMostElements = 1 << 12;  // of an operand
constexpr int kMostCases = 4;

// A file in memory.
class TextFile {
 public:
  TextFile(const uint8_t* data, size_t size) : descriptor_(memfd_create("cases", 0)) {
    Require(write(descriptor_, data, size) == static_cast<ssize_t>(size), "the file could be written");
  }
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;
  ~TextFile() { close(descriptor_); }
  std::string path() const { return absl::StrCat("/proc/self/fd/", descriptor_); }

 private:
  int descriptor_;
};

template <typename Dims>
bool IsSmall(const Dims& dims) {
  int64_t elements = 1;
  for (int64_t dim : dims) {
    if (dim > 0 && __builtin_mul_overflow(elements, dim, &elements)) return false;
  }
  return elements <= kMostElements;
}

// Zero dims do not count: whoever reads a case must not loop over the others.
bool IsSmall(const proto::GroupedGemmCase& source) {
  return IsSmall(source.lhs().dims()) && IsSmall(source.rhs().dims()) && IsSmall(source.out().dims()) &&
         IsSmall(source.bias().dims()) && IsSmall(source.alpha().dims()) && IsSmall(source.beta().dims()) &&
         IsSmall(source.group_offset().dims()) && IsSmall(source.gate().dims()) && IsSmall(source.row_index().dims()) &&
         IsSmall(source.group_shape());
}

void Call(const proto::GroupedGemmCase& source) {
  const absl::StatusOr<proto::GroupedGemmCase> full = host::MakeExplicit(source);
  if (!full.ok() || !IsSmall(*full)) return;
  try {
    const absl::StatusOr<host::CaseProblem> made = host::MakeCaseProblem(*full);
    if (!made.ok()) return;
    std::vector<int64_t> workspace(host::WorkspaceElements(made->problem, raggemm_v1_workspace_coefficients));
    ExecuteAndCheck(host::MakeCall(made->problem, absl::MakeSpan(workspace)));
  } catch (const std::invalid_argument&) {  // as case_problem.h says
  }
}

}  // namespace
}  // namespace raggemm::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace raggemm::test;  // NOLINT(google-build-using-namespace): the name is libFuzzer's
  const TextFile file(data, size);
  const absl::StatusOr<raggemm::proto::GroupedGemmCases> cases = raggemm::ReadCases(file.path());
  int32_t ok = 0;
  char* json = raggemm_cases_json(file.path().c_str(), &ok);
  Require(json != nullptr && (ok == 1) == cases.ok(), "the two readers agree");
  raggemm_free(json);
  if (!cases.ok()) {
    Require(absl::IsInvalidArgument(cases.status()), "what cannot be read is an invalid argument");
    return 0;
  }
  for (int i = 0; i < std::min(kMostCases, cases->cases_size()); ++i) Call(cases->cases(i));
  return 0;
}
