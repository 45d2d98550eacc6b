// A libFuzzer target for texts of GroupedGemmCases. Each text must be read, or refused as an invalid argument. The
// custom call computes small cases among the first kMostCases. out must be within its error bound, or the call must
// return an error and leave out untouched.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ffi/handlers.h"
#include "proto/read_cases.h"
#include "raggemm/element.h"
#include "tests/host/case_problem.h"
#include "tests/host/mini_host.h"
#include "tests/host/problem_call.h"
#include "tests/oracle/reference.h"
#include "tests/oracle/values.h"

namespace raggemm::test {
namespace {

constexpr int64_t kMostElements = 1 << 12;
constexpr int kMostCases = 4;

// Aborts unless `holds` is true, so that libFuzzer saves the input.
void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

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

// Returns true if no array is large. Ignores scales and zero points. Counts an extent of zero as one, because code may
// loop over the other extents.
bool IsSmall(const proto::GroupedGemmCase& source) {
  return IsSmall(source.lhs().dims()) && IsSmall(source.rhs().dims()) && IsSmall(source.out().dims()) &&
         IsSmall(source.bias().dims()) && IsSmall(source.alpha().dims()) && IsSmall(source.beta().dims()) &&
         IsSmall(source.group_offset().dims()) && IsSmall(source.gate().dims()) && IsSmall(source.row_index().dims()) &&
         IsSmall(source.group_shape());
}

void ExecuteAndCheck(const GroupedGemmProblem& problem, const host::Call& call) {
  const host::Error error = host::Execute(raggemm_grouped_gemm_v1_execute, call, nullptr);
  Require(host::LiveErrors() == 0, "every error was destroyed");
  const Array& out = problem.out;
  if (!error.ok()) {
    Require(error.code == XLA_FFI_Error_Code_INVALID_ARGUMENT || error.code == XLA_FFI_Error_Code_FAILED_PRECONDITION,
            "an error is one of the caller's");
    Require(!error.message.empty(), "an error says what is wrong");
    const auto* begin = static_cast<const unsigned char*>(out.data);
    const int64_t bytes = begin == nullptr ? 0 : BytesOf(out);
    Require(std::all_of(begin, begin + bytes, [](unsigned char byte) { return byte == 0xFF; }), "out is untouched");
    return;
  }
  if (ElementCount(out) == 0) return;
  const absl::StatusOr<Reference> reference = ComputeReference(problem);
  Require(reference.ok(), "what was computed has a reference");
  for (size_t i = 0; i < reference->want.size(); ++i) {
    const double got = ToDouble(out, static_cast<int64_t>(i));
    Require(ErrorInUnitsOfBound(got, reference->want[i], reference->bound[i], out.dtype) <= 1,
            "out is within its bound");
  }
}

void Call(const proto::GroupedGemmCase& source) {
  const absl::StatusOr<proto::GroupedGemmCase> full = host::MakeExplicit(source);
  if (!full.ok() || !IsSmall(*full)) return;
  try {
    const absl::StatusOr<host::CaseProblem> made = host::MakeCaseProblem(*full);
    if (!made.ok()) return;
    std::vector<int64_t> workspace(host::WorkspaceElements(made->problem, raggemm_v1_workspace_coefficients));
    ExecuteAndCheck(made->problem, host::MakeCall(made->problem, absl::MakeSpan(workspace)));
  } catch (const std::invalid_argument&) {  // ArrayStore::Add throws for invalid dims.
  }
}

}  // namespace
}  // namespace raggemm::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace raggemm::test;  // NOLINT(google-build-using-namespace): the name is libFuzzer's
  const TextFile file(data, size);
  const absl::StatusOr<raggemm::proto::GroupedGemmCases> cases = raggemm::ReadCases(file.path());
  if (!cases.ok()) {
    Require(absl::IsInvalidArgument(cases.status()), "what cannot be read is an invalid argument");
    return 0;
  }
  for (int i = 0; i < std::min(kMostCases, cases->cases_size()); ++i) Call(cases->cases(i));
  return 0;
}
