// What a router, or a shape without elements, may say: sizes at every place of every array in every mode, and extents
// that nothing but an empty buffer can have.
#include <chrono>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "raggemm/operands.h"
#include "tests/ffi/hostile_host/hostile_call.h"
#include "tests/support/variants.h"
#include "tests/support/watchdog.h"

namespace raggemm::test {
namespace {

// The value of one size as its type has it.
int64_t Wrapped(DType dtype, int64_t value) {
  if (dtype == DType::kS32) return static_cast<int32_t>(value);
  if (dtype == DType::kU32) return static_cast<uint32_t>(value);
  return value;
}

// Sets one size; gives back what it was.
int64_t Exchange(const Array& sizes, int64_t index, int64_t value) {
  int64_t before = 0;
  char* place = static_cast<char*>(sizes.data) + index * SizeOf(sizes.dtype);
  std::memcpy(&before, place, SizeOf(sizes.dtype));
  std::memcpy(place, &value, SizeOf(sizes.dtype));
  return before;
}

TEST(SizesTest, EveryWrongSizeOfEveryGroupIsRefused) {
  host::ThreadPool pool(2);
  for (ProblemSpec spec : OneOfEachMode(/*with_c=*/true)) {
    for (DType dtype : kAllSizesTypes) {
      spec.sizes_type = dtype;
      HostileCall call(spec);
      for (const DimsSlot& slot : kDimsSlots) {
        const RaggedDims& dims = call.problem().problem.*slot.operand.*slot.dims;
        if (!dims.has_value()) continue;
        for (int64_t g = 0; g < spec.groups; ++g) {
          for (int64_t value : {int64_t{-1}, int64_t{1000}, kHighest, kLowest, int64_t{1} << 31, kHighest / 2}) {
            const int64_t before = Exchange(*dims, g, value);
            const int64_t sent = Wrapped(dtype, value);
            const bool same = sent == Wrapped(dtype, before);
            const host::Error error = call.Execute(&pool);
            // A size that fits into its own array disagrees with the other array of its axis.
            const std::string text = absl::StrCat("group ", g);
            if (!same) {
              EXPECT_TRUE(call.IsRefused(error, {std::string(slot.name), text})) << Describe(spec) << sent;
            }
            Exchange(*dims, g, before);
          }
        }
      }
      EXPECT_EQ(call.Execute(&pool).message, "");
      EXPECT_TRUE(call.IsRight());
    }
  }
}

TEST(OffsetTest, EveryWrongOffsetIsRefused) {
  for (DType dtype : kAllSizesTypes) {
    for (ProblemSpec spec : OneOfEachMode(/*with_c=*/false)) {
      const bool may_shift = spec.mode == RaggedMode::kRaggedM || spec.mode == RaggedMode::kRaggedK;
      const int64_t limit = may_shift ? 2 : 0;
      if (may_shift) spec.local_groups = 2;
      HostileCall call(spec, [&](TestProblem& t) { t.problem.group_offset = t.AddIntegers(dtype, {}, {limit}); });
      EXPECT_EQ(call.Execute(nullptr).message, "");
      EXPECT_TRUE(call.IsRight());
      for (int64_t value : {limit + 1, int64_t{-1}, kHighest, kLowest + 5, int64_t{1} << 31}) {
        const int64_t sent = Wrapped(dtype, value);
        if (sent >= 0 && sent <= limit) continue;
        Exchange(*call.problem().problem.group_offset, 0, value);
        const std::string text = absl::StrCat("group_offset: value ", sent, " at index 0, must be in [0, ", limit, "]");
        EXPECT_TRUE(call.IsRefused(call.Execute(nullptr), {text})) << Describe(spec);
      }
    }
  }
}

TEST(RowIndexTest, EveryWrongIndexIsRefused) {
  for (DType dtype : kAllSizesTypes) {
    ProblemSpec spec = EveryOperandOfExperts();
    spec.sizes_type = dtype;
    HostileCall call(spec);
    EXPECT_EQ(call.Execute(nullptr).message, "");
    EXPECT_TRUE(call.IsRight());
    for (int64_t row : {3, 6, 12}) {  // of the processed groups
      for (int64_t value : {*spec.lhs_rows, int64_t{-1}, kHighest, kLowest + 9, int64_t{1} << 31}) {
        const int64_t sent = Wrapped(dtype, value);
        if (sent >= 0 && sent < *spec.lhs_rows) continue;
        const int64_t before = Exchange(*call.problem().problem.row_index, row, value);
        const std::string text = absl::StrCat("row_index: value ", sent, " at index ", row, ", must be in [0, 7)");
        EXPECT_TRUE(call.IsRefused(call.Execute(nullptr), {text}));
        Exchange(*call.problem().problem.row_index, row, before);
      }
    }
  }
}

// ---- extents without elements ----

using Dims = std::vector<int64_t>;

// Null buffers of these shapes, and arrays of sizes with these shapes and values.
struct EmptyProblem {
  const char* name;
  Dims lhs, rhs, out;
  std::vector<const char*> ragged;  // the arrays that are set
  Dims sizes_shape;
  std::vector<Dims> sizes;  // of each set array; none where the shape has no elements
  bool lhs_is_trans = false;
  bool packed = false;
  const char* error = "";  // what it says where it is not legal
};

// 2^60 elements of f32 are the largest power of two whose bytes can be counted.
constexpr int64_t kTwoTo62 = int64_t{1} << 62, kTwoTo60 = int64_t{1} << 60, kTwoTo59 = kTwoTo60 / 2,
                  kTwoTo40 = int64_t{1} << 40, kTwoTo30 = int64_t{1} << 30;

const EmptyProblem kEmpty[] = {
    {"AllExtentsZero", {0, 0}, {0, 0, 0}, {0, 0}, {"lhs_first", "out_first"}, {0}, {}},
    {"ReplicasWithoutGroups",
     {kTwoTo60, 0},
     {0, 0, 0},
     {kTwoTo60, 0},
     {"lhs_first", "out_first"},
     {kTwoTo30, kTwoTo30, 0},
     {}},
    {"ProblemsWithoutGroups",
     {kTwoTo60, 0},
     {0, 0, 0},
     {kTwoTo60, 0},
     {"lhs_first", "out_first"},
     {kTwoTo60, 1, 0},
     {}},
    {"RowsWithoutColumns",
     {kTwoTo60, 0},
     {2, 0, 0},
     {kTwoTo60, 0},
     {"lhs_first", "out_first"},
     {2},
     {{kTwoTo59, kTwoTo59}, {kTwoTo59, kTwoTo59}}},
    {"ColumnsWithoutRows", {0, 5}, {0, 5, kTwoTo40}, {0, kTwoTo40}, {"lhs_first", "out_first"}, {0}, {}},
    {"NoGroupOfHugeOnes", {0, kTwoTo40}, {0, kTwoTo40, kTwoTo40}, {0, kTwoTo40}, {"lhs_first", "out_first"}, {0}, {}},
    {"ContractionWithoutGroups", {0, kTwoTo60}, {0, 0}, {0, kTwoTo60, 0}, {"lhs_first", "rhs_first"}, {0}, {}, true},
    {"ContractionWithoutRows",
     {kTwoTo60, 0},
     {kTwoTo60, 0},
     {2, 0, 0},
     {"lhs_first", "rhs_first"},
     {2},
     {{kTwoTo59, kTwoTo59}, {kTwoTo59, kTwoTo59}},
     true},
    {"ColumnGroupsWithoutRows",
     {0, 0},
     {0, kTwoTo60},
     {0, kTwoTo60},
     {"rhs_last", "out_last"},
     {2},
     {{kTwoTo59, 3}, {kTwoTo59, 3}}},
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
    {"UniformWithoutGroups", {0, kTwoTo40, kTwoTo40}, {0, kTwoTo40, kTwoTo40}, {0, kTwoTo40, kTwoTo40}, {}, {}, {}},
    {"UniformWithoutColumns", {3, kTwoTo40, 0}, {3, 0, 0}, {3, kTwoTo40, 0}, {}, {}, {}},
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
    {"PackedContractionOfNothing",
     {0},
     {0},
     {0},
     {"lhs_first", "lhs_last", "rhs_first", "rhs_last", "out_first", "out_last"},
     {3},
     {{0, 0, 0}, {kTwoTo62, kHighest, kTwoTo62}, {kTwoTo62, kHighest, kTwoTo62}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}},
     false,
     true},
};

// As the plugin sees it: what `empty` says, with memory for the sizes only.
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

TEST_P(EmptyTest, IsDoneAtOnce) {
  const Watchdog watchdog(GetParam().name, std::chrono::seconds(5));
  host::ThreadPool pool(2);
  const EmptyCall empty(GetParam());
  const std::string expected = GetParam().error;
  // Where there is no element a buffer may be anywhere, and at an odd address.
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

}  // namespace
}  // namespace raggemm::test
