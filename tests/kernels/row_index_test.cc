// Tests row_index, an array with the row of lhs for each row of out.
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/target/isa.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/bits_rule.h"
#include "tests/support/check.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

using testing::HasSubstr;

TEST(RowIndex, IsRightForEveryTypeAndSize) {
  for (DType lhs : kAllFloats) {
    for (DType rhs : {DType::kF32, DType::kBF16, DType::kF64}) {
      for (int64_t m : {1, 5, 17, 90}) {
        for (int64_t k : {0, 1, 33, 300, 530}) {
          ProblemSpec spec{.groups = 3, .m = 2 * m, .n = 20, .k = k, .sizes = {m, 0, m - 1}, .lhs = lhs, .rhs = rhs};
          spec.lhs_rows = m == 5 ? 1 : m == 17 ? 3 : 40;
          spec.sizes_type = kAllSizesTypes[static_cast<size_t>(m) % 3];
          spec.rhs_flipped = k == 33;
          if (!Sampled(4)) continue;
          ExpectRight(spec);
        }
      }
    }
  }
}

TEST(RowIndex, IsRightForBf16AndSplitF32) {
  ProblemSpec spec{.groups = 2, .m = 70, .n = 70, .k = 333, .sizes = {40, 27}};
  spec.lhs_rows = 25;
  for (ArithmeticId sums : kSplittingRules) {
    spec.bf16_sums = sums;
    spec.lhs = spec.rhs = DType::kBF16;
    spec.precision = Precision::kDefault;
    ExpectRight(spec);
    spec.lhs = spec.rhs = DType::kF32;
    spec.precision = Precision::kBf16X6;
    ExpectRight(spec);
  }
}

TEST(RowIndex, IsRightForShardsAndBatches) {
  ProblemSpec spec{.problems = 2, .replicas = 2, .groups = 3, .m = 20, .n = 30, .k = 10, .c = true, .bias = true};
  spec.sizes = {4, 5, 1, 2, 0, 9, 3, 3, 2, 0, 0, 0};
  spec.lhs_rows = 6;
  ExpectRight(spec);
  spec.group_offset = 1;
  spec.local_groups = 2;
  spec.activation = Activation::kSilu;
  spec.gate = DType::kF32;
  ExpectRight(spec);
  spec.local_groups = 0;
  ExpectRight(spec);
}

TEST(RowIndex, IsRightForQuantizedWeights) {
  ProblemSpec spec{.groups = 2, .m = 30, .n = 48, .k = 128, .sizes = {17, 9}, .lhs = DType::kBF16, .rhs = DType::kS4};
  spec.rhs_scale = {32, 1};
  spec.lhs_rows = 5;
  ExpectRight(spec);
}

// The buffer for gathered rows holds kMaxRows rows of f32, or half as many rows of f64.
TEST(RowIndexBuffer, HasRoomForEveryKernel) {
  for (const IsaRow& isa : IsaRows()) {
    for (const KernelRow& row : isa.kernels) {
      const int64_t size = row.arithmetic == ArithmeticId::kF64 ? 8 : 4;
      EXPECT_LE(row.rows * size, kMaxRows * 4) << NameOf(row);
    }
  }
}

// lhs begins or ends at an unmapped page.
TEST(RowIndex, ChangedAfterPlanningReadsNoOtherMemory) {
  for (const Cliff cliff : {Cliff::kBehind, Cliff::kBefore}) {
    ProblemSpec spec{.groups = 2, .m = 40, .n = 30, .k = 50, .sizes = {22, 18}, .sizes_type = DType::kS64};
    spec.lhs_rows = 7;
    spec.cliff = cliff;
    for (Isa isa : HostIsas()) {
      TestProblem test(spec);
      const WorkspaceCoefficients size = WorkspaceSizeFor(2);
      std::vector<int64_t> workspace(size.constant + size.per_group * 2);
      const absl::StatusOr<Plan> plan = MakePlan(test.problem, {.isa = isa}, absl::MakeSpan(workspace));
      ASSERT_EQ(plan.status(), absl::OkStatus());
      auto* index = static_cast<int64_t*>(test.problem.row_index->data);
      const int64_t wild[] = {-1, 7, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()};
      for (int64_t i = 0; i < 40; ++i) index[i] = wild[i % 4];
      EXPECT_EQ(raggemm::Run(*plan), absl::OkStatus());
      EXPECT_TRUE(test.SurroundingsIntact());
    }
  }
}

TEST(RowIndexErrors, NameIndexValueAndLimit) {
  ProblemSpec spec{.groups = 3, .m = 8, .n = 4, .k = 4, .sizes = {2, 3, 1}, .sizes_type = DType::kS64};
  spec.lhs_rows = 5;
  for (int64_t value : {int64_t{-1}, int64_t{5}, std::numeric_limits<int64_t>::min(), int64_t{1} << 40}) {
    EXPECT_EQ(ErrorOf(spec, [&](TestProblem& t) { static_cast<int64_t*>(t.problem.row_index->data)[5] = value; }),
              absl::StrCat("row_index: value ", value, " at index 5, must be in [0, 5), the rows of lhs"));
  }
  spec.sizes_type = DType::kU32;
  EXPECT_THAT(ErrorOf(spec, [](TestProblem& t) { static_cast<uint32_t*>(t.problem.row_index->data)[0] = ~0U; }),
              HasSubstr("row_index: value 4294967295 at index 0"));
  EXPECT_THAT(ErrorOf(spec, [](TestProblem& t) { t.problem.lhs.dims = {0, 4}; }), HasSubstr("must be in [0, 0)"));
  spec.sizes = {2, 3, 4};
  spec.lhs_rows.reset();
  EXPECT_THAT(ErrorOf(spec,
                      [](TestProblem& t) {
                        const int64_t rows[8] = {};
                        t.problem.row_index = t.AddIntegers(DType::kS32, {8}, rows);
                      }),
              HasSubstr("group 2 has size 4 and starts at 5, which exceeds the extent 8 of row_index"));
}

TEST(RowIndexErrors, NameShapesAndModes) {
  ProblemSpec spec{.groups = 1, .m = 8, .n = 4, .k = 4, .sizes = {8}};
  const auto index = [](TestProblem& t) {
    t.problem.row_index = t.AddIntegers(DType::kS32, {8}, std::vector<int64_t>(8));
  };
  EXPECT_EQ(ErrorOf(spec,
                    [&](TestProblem& t) {
                      index(t);
                      t.problem.row_index->dims = {7};
                    }),
            "row_index: shape is [7], must be [8], the rows of out");
  EXPECT_EQ(ErrorOf(spec,
                    [&](TestProblem& t) {
                      index(t);
                      t.problem.row_index->dims = {2, 4};
                    }),
            "row_index: shape is [2,4], must be [8], the rows of out");
  ProblemSpec replicas = spec;
  replicas.replicas = 2;
  replicas.sizes = {8, 8};
  EXPECT_EQ(ErrorOf(replicas, index), "row_index: shape is [8], must be [16], the rows of out");
  EXPECT_EQ(ErrorOf(spec,
                    [&](TestProblem& t) {
                      index(t);
                      t.problem.row_index->dtype = DType::kF32;
                    }),
            "row_index: dtype is f32, must be s32, s64 or u32");
  EXPECT_EQ(ErrorOf(spec,
                    [&](TestProblem& t) {
                      index(t);
                      t.problem.row_index->data = t.problem.out.data;
                    }),
            "out overlaps row_index");
  spec.lhs_flipped = true;
  EXPECT_EQ(ErrorOf(spec, index), "row_index is for rows of lhs, which is transposed");
  spec.lhs_flipped = false;
  spec.lhs = DType::kS8;
  EXPECT_EQ(ErrorOf(spec, index), "row_index is for rows of floats; lhs is s8");
  spec.lhs = DType::kF32;
  for (RaggedMode mode : {RaggedMode::kRaggedK, RaggedMode::kRaggedN, RaggedMode::kUniform}) {
    spec.mode = mode;
    spec.sizes = {4};
    EXPECT_EQ(ErrorOf(spec, index), absl::StrCat("row_index is for ragged M, not ", NameOf(mode)));
  }
}

TEST(RowIndex, IsNotReadForRowsInNoProcessedGroup) {
  ProblemSpec spec{.groups = 3, .m = 8, .n = 4, .k = 4, .sizes = {2, 3, 1}};
  spec.lhs_rows = 5;
  spec.group_offset = 1;
  spec.local_groups = 1;  // Only group 1 is processed. It has rows 2 to 4.
  TestProblem test(spec);
  for (int64_t i : {0, 1, 5, 6, 7}) EXPECT_EQ(ToInteger(*test.problem.row_index, i), -1);
  EXPECT_EQ(GroupedGemm(test.problem), absl::OkStatus());
}

}  // namespace
}  // namespace raggemm::test
