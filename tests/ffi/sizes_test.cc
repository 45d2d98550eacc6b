// Tests wrong group sizes and wrong offsets: each array of each mode, at each index.
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "raggemm/element.h"
#include "raggemm/operands.h"
#include "tests/ffi/spoilt_call.h"
#include "tests/support/process.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

constexpr int64_t kWrong[] = {-1, 1000, kHighest, kLowest, int64_t{1} << 31, kHighest / 2};

// Writes wrong values to one element of an array, and expects errors that have all `texts`. The values are those of
// kWrong, converted to the array's type. Skips a value if it equals the right one or is_right accepts it.
template <typename IsRight>
void ExpectValuesAreRefused(SpoiltCall& call, const Array& array, int64_t index, const std::vector<std::string>& texts,
                            IsRight is_right) {
  char* element = static_cast<char*>(array.data) + index * SizeOf(array.dtype);
  const int64_t before = ToInteger(array, index);
  for (int64_t value : kWrong) {
    std::memcpy(element, &value, SizeOf(array.dtype));
    const int64_t sent = ToInteger(array, index);
    if (sent != before && !is_right(sent)) {
      EXPECT_TRUE(call.IsRefused(call.Execute(nullptr), texts)) << sent << " at " << index;
    }
    std::memcpy(element, &before, SizeOf(array.dtype));
  }
}

bool Never(int64_t) { return false; }

void ExpectRight(SpoiltCall& call) {
  EXPECT_EQ(call.Execute(nullptr).message, "");
  EXPECT_TRUE(call.IsRight());
}

TEST(SizesTest, EveryWrongSizeOfEveryGroupIsRefused) {
  for (ProblemSpec spec : OneOfEachMode(/*with_c=*/true)) {
    for (DType dtype : kAllSizesTypes) {
      spec.sizes_type = dtype;
      SCOPED_TRACE(Describe(spec));
      SpoiltGemm call(spec);
      for (const DimsSlot& slot : kDimsSlots) {
        const RaggedDims& dims = call.problem().problem.*slot.operand.*slot.dims;
        if (!dims.has_value()) continue;
        for (int64_t g = 0; g < spec.groups; ++g) {
          ExpectValuesAreRefused(call, *dims, g, {std::string(slot.name), absl::StrCat("group ", g)}, Never);
        }
      }
      ExpectRight(call);
    }
  }
}

TEST(SizesTest, EveryWrongOffsetIsRefused) {
  for (DType dtype : kAllSizesTypes) {
    for (ProblemSpec spec : OneOfEachMode(/*with_c=*/false)) {
      SCOPED_TRACE(Describe(spec));
      const bool may_shift = spec.mode == RaggedMode::kRaggedM || spec.mode == RaggedMode::kRaggedK;
      const int64_t limit = may_shift ? 2 : 0;
      if (may_shift) spec.local_groups = 2;
      SpoiltGemm call(spec, [&](TestProblem& t) { t.problem.group_offset = t.AddIntegers(dtype, {}, {limit}); });
      ExpectRight(call);
      ExpectValuesAreRefused(call, *call.problem().problem.group_offset, 0,
                             {"group_offset: value ", absl::StrCat(" at index 0, must be in [0, ", limit, "]")},
                             [&](int64_t value) { return value >= 0 && value <= limit; });
    }
  }
}

TEST(SizesTest, EveryWrongSizeTokenAndOffsetOfAnMlpIsRefused) {
  for (DType dtype : kAllSizesTypes) {
    MlpSpec spec{.sizes = {3, 4, 0, 6, 2}, .local = 3, .offset = 1};
    spec.sizes_type = dtype;
    MlpCall call(spec);
    const MoeMlpProblem& problem = call.mlp().problem;
    const auto is_zero = [](int64_t value) { return value == 0; };
    for (int64_t g = 0; g < spec.groups(); ++g) {
      ExpectValuesAreRefused(call, problem.group_sizes, g, {"group_sizes: group "}, is_zero);
    }
    ExpectValuesAreRefused(call, *problem.group_offset, 0, {"group_offset: value "}, is_zero);
    for (int64_t row = 3; row < 13; ++row) {  // Rows of the processed groups.
      ExpectValuesAreRefused(call, problem.row_tokens, row, {"row_tokens: value "}, is_zero);
    }
    ExpectRight(call);
  }
}

// ---- extents without elements ----

using Dims = std::vector<int64_t>;

struct EmptyProblem {
  const char* name;
  Dims lhs, rhs, out;
  std::vector<const char*> ragged;
  Dims sizes_shape;
  std::vector<Dims> sizes;  // Values of each array of `ragged`. Empty if these arrays have no elements.
  bool lhs_is_trans = false;
  bool packed = false;
  const char* error = "";  // Message of the expected error. "": the call succeeds.
};

// An f32 array of 2^60 elements has 2^62 bytes. This fits into int64, but twice as many bytes do not.
constexpr int64_t kTwoTo62 = int64_t{1} << 62, kTwoTo60 = int64_t{1} << 60, kTwoTo59 = kTwoTo60 / 2,
                  kTwoTo40 = int64_t{1} << 40, kTwoTo30 = int64_t{1} << 30;

const EmptyProblem kEmpty[] = {
    {"ReplicasWithoutGroups",
     {kTwoTo60, 0},
     {0, 0, 0},
     {kTwoTo60, 0},
     {"lhs_first", "out_first"},
     {kTwoTo30, kTwoTo30, 0},
     {}},
    {"RowsWithoutColumns",
     {kTwoTo60, 0},
     {2, 0, 0},
     {kTwoTo60, 0},
     {"lhs_first", "out_first"},
     {2},
     {{kTwoTo59, kTwoTo59}, {kTwoTo59, kTwoTo59}}},
    {"ColumnReplicas",
     {kTwoTo40, 0},
     {kTwoTo40, 0},
     {0, 0},
     {"rhs_last", "out_last"},
     {1, kTwoTo40, 0},
     {},
     true,
     false,
     "lhs has K = 1, but rhs has K = 1099511627776"},
    {"GroupsWithoutReplicas",
     {0, 0},
     {0, 0},
     {0, 0},
     {"rhs_last", "out_last"},
     {kTwoTo40, 0, kTwoTo40},
     {},
     false,
     false,
     "rhs_last: shape [1099511627776,0,1099511627776] overflows int64"},
    {"PackedRowsOfNothing",
     {0},
     {0},
     {0},
     {"lhs_first", "lhs_last", "rhs_first", "rhs_last", "out_first", "out_last"},
     {4},
     {{kTwoTo62, kTwoTo62, kTwoTo62, kTwoTo62},
      {0, 0, 0, 0},
      {0, 0, 0, 0},
      {0, 0, 0, 0},
      {kTwoTo62, kTwoTo62, kTwoTo62, kTwoTo62},
      {0, 0, 0, 0}},
     false,
     true},
};

// A call of an EmptyProblem. The workspace and arrays with group sizes have memory. All other buffers are null.
class EmptyCall {
 public:
  explicit EmptyCall(const EmptyProblem& empty) {
    GroupedGemmProblem problem;
    problem.lhs.dims = empty.lhs;
    problem.rhs.dims = empty.rhs;
    problem.out.dims = empty.out;
    problem.lhs.is_trans = empty.lhs_is_trans;
    if (empty.packed) problem.lhs.layout = problem.rhs.layout = problem.out.layout = Layout::kPacked;
    for (size_t i = 0; i < empty.ragged.size(); ++i) {
      void* values = nullptr;
      if (!empty.sizes.empty()) values = sizes_.emplace_back(empty.sizes[i]).data();
      for (const DimsSlot& slot : kDimsSlots) {
        if (slot.name == empty.ragged[i]) {
          problem.*slot.operand.*slot.dims = Array{values, DType::kS64, empty.sizes_shape};
        }
      }
    }
    workspace_.resize(host::WorkspaceElements(problem, ThePlugin().workspace_coefficients));
    call_ = host::MakeCall(problem, absl::MakeSpan(workspace_));
  }
  const host::Call& call() const { return call_; }

 private:
  std::deque<Dims> sizes_;
  std::vector<int64_t> workspace_;
  host::Call call_;
};

class EmptyTest : public testing::TestWithParam<EmptyProblem> {};

TEST_P(EmptyTest, TakesNoTime) {
  const Deadline deadline(5);
  host::ThreadPool pool(2);
  const EmptyCall empty(GetParam());
  const std::string expected = GetParam().error;
  // A buffer without elements may have any address, even an odd one.
  for (uintptr_t address : {0, 1}) {
    host::Call call = empty.call();
    call.results[0].data = reinterpret_cast<void*>(address);
    for (host::Buffer& buffer : call.args) {
      if (buffer.data == nullptr) buffer.data = reinterpret_cast<void*>(address);
    }
    EXPECT_EQ(host::Execute(ThePlugin().execute, call, &pool).message, expected);
    host::CallFrame frame(call, XLA_FFI_ExecutionStage_EXECUTE, &pool);
    EXPECT_THAT(PlanText(frame.get()), testing::HasSubstr(expected.empty() ? "tiles: 0 gemm, 0 fill" : expected));
  }
}

void PrintTo(const EmptyProblem& empty, std::ostream* os) { *os << empty.name; }

INSTANTIATE_TEST_SUITE_P(Extents, EmptyTest, testing::ValuesIn(kEmpty),
                         [](const testing::TestParamInfo<EmptyProblem>& info) { return info.param.name; });

// Extents from 2^40 on are an error, because the workspace size could overflow.
TEST(EmptyMlpTest, HugeExtentsWithoutElements) {
  for (int64_t huge : {int64_t{1} << 32, int64_t{1} << 41, kHighest}) {
    std::vector<int64_t> workspace(1 << 16);
    MoeMlpProblem problem;
    problem.x.dims = problem.out.dims = {0, huge};
    problem.row_tokens = {nullptr, DType::kS32, {0}};
    problem.group_sizes = {nullptr, DType::kS32, {0}};
    problem.w_up.dims = problem.w_down.dims = {0, huge, huge};
    const host::Call call = host::MakeCall(problem, absl::MakeSpan(workspace));
    const host::Error error = host::Execute(MlpHandler("execute"), call, nullptr);
    EXPECT_EQ(error.code, huge < int64_t{1} << 40 ? XLA_FFI_Error_Code_OK : XLA_FFI_Error_Code_INVALID_ARGUMENT)
        << error.message;
  }
}

}  // namespace
}  // namespace raggemm::test
