// Tests streaming GEMV (RhsMode::kGemv), which reads rhs once in the order of memory, for groups of few rows.
#include <cstdint>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/plan/block.h"
#include "kernels/plan/rhs_layout.h"
#include "kernels/plan/rhs_mode.h"
#include "kernels/plan/schedule.h"
#include "kernels/plan/strategy.h"
#include "kernels/target/isa.h"
#include "raggemm/element.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/check.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

// Returns options for a CPU with an L2 cache of one byte, so that plans assume that rhs comes from memory.
Options Uncached() {
  Options options{.executor = Executor::kOpenMp, .threads = 1};
  options.cpu.l2_bytes = 1;
  return options;
}

void ExpectUncachedBits(const ProblemSpec& spec, absl::Span<const int64_t> threads = {1}) {
  TestProblem test(spec);
  ASSERT_TRUE(GivesExpectedBits(test, Uncached(), threads)) << Describe(spec);
}

// Returns a problem whose groups have 0 to 19 rows. GEMV kernels compute groups of up to 8 rows, or 18 rows of f32 with
// AVX2.
ProblemSpec FewRowsSpec(int64_t n, int64_t k) {
  return {.groups = 13, .m = 94, .n = n, .k = k, .sizes = {1, 5, 0, 2, 8, 3, 9, 4, 7, 6, 12, 18, 19}};
}

class Gemv : public IsaTest {};
RAGGEMM_FOR_EACH_ISA(Gemv);

TEST_P(Gemv, IsChosenForFewRows) {
  for (int64_t rows : {1, 8, 9, 18, 19}) {
    for (int64_t columns : {96, 100}) {
      const TestProblem test({.m = rows, .n = columns, .k = 300, .sizes = {rows}});
      std::vector<int64_t> workspace(1000);
      Options options = Uncached();
      options.isa = GetParam();
      const Schedule plan = MakeSchedule(test.problem, options, absl::MakeSpan(workspace)).value();
      const KernelRow& kernels = *plan.tile.kernels.row;
      // AVX2 has GEMVs with several register tiles. They need whole panels.
      const int64_t most = kernels.vector == 8 && columns == 96 ? 18 : std::min<int64_t>(kGemvRows, kernels.rows);
      const bool has = KernelsOf(kernels, DType::kF32).gemv[1].run != nullptr && rows <= most;
      EXPECT_EQ(absl::string_view(RowOf(TileTask(plan, 0).plan.mode).name) == "gemv", has) << rows << "x" << columns;
    }
  }
}

TEST(GemvOnEveryIsa, EveryTypeAndExtent) {
  for (DType rhs : kAllFloats) {
    for (int64_t k : {1, 7, 8, 31, 256, 257, 530}) {
      for (int64_t n : {1, 16, 31, 33, 64, 100, 300}) {
        ProblemSpec spec = FewRowsSpec(n, k);
        spec.rhs = rhs;
        spec.out = n % 2 == 0 ? DType::kF32 : rhs;
        if (!Sampled(8)) continue;
        ExpectUncachedBits(spec);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(GemvOnEveryIsa, Bf16ByEachRule) {
  for (ArithmeticId rule : kBf16Rules) {
    for (int64_t k : {1, 2, 15, 16, 33, 300}) {
      ProblemSpec spec = FewRowsSpec(70, k);
      spec.lhs = spec.rhs = DType::kBF16;
      spec.bf16_sums = rule;
      spec.alpha = spec.bias = k == 33;
      spec.c = k == 300;
      ExpectUncachedBits(spec);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(GemvOnEveryIsa, QuantizedWeights) {
  const std::vector<int64_t> kSumScales = {64, 1}, kElementScales = {32, 1};
  for (DType rhs : kAllQuantized) {
    for (DType lhs : {DType::kBF16, DType::kF32}) {
      for (const auto& [k, n, scale, type] : {std::tuple{33, 264, std::vector<int64_t>{}, DType::kF32},
                                              {1, 100, {1}, DType::kF32},
                                              {320, 200, kSumScales, DType::kBF16},
                                              {288, 264, kElementScales, DType::kF8E8M0FNU},
                                              {96, 36, kElementScales, DType::kF8E8M0FNU}}) {
        ProblemSpec spec = FewRowsSpec(n, k);
        spec.lhs = lhs;
        spec.rhs = rhs;
        spec.rhs_scale = scale;
        spec.scale_type = type;
        if (!Sampled(8)) continue;
        ExpectUncachedBits(spec);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

// Other kernels are tested, too: GEMV kernels do not compute the group of nine rows, nor transposed weights.
TEST(GemvOnEveryIsa, ExtremeScales) {
  constexpr uint8_t kCodes[] = {0, 1, 2, 3, 125, 127, 250, 251, 252, 253, 254, 255};
  for (bool flipped : {false, true}) {
    for (DType rhs : {DType::kF4E2M1FN, DType::kF8E4M3FN}) {
      ProblemSpec spec = FewRowsSpec(200, 96);
      spec.lhs = DType::kBF16;
      spec.rhs = rhs;
      spec.rhs_flipped = flipped;
      spec.rhs_scale = flipped ? std::vector<int64_t>{1, 32} : std::vector<int64_t>{32, 1};
      spec.scale_type = DType::kF8E8M0FNU;
      TestProblem test(spec);
      auto* scales = static_cast<uint8_t*>(test.problem.rhs_scale->data);
      for (int64_t i = 0; i < ElementCount(*test.problem.rhs_scale); ++i) scales[i] = kCodes[i * 7 % 31 % 12];
      EXPECT_TRUE(GivesExpectedBits(test, Uncached())) << Describe(spec);
    }
  }
}

// GEMV kernels load elements of rhs ahead of their use, so the last group ends at an unmapped page.
TEST(GemvOnEveryIsa, ReadsNothingAfterTheLastGroup) {
  for (int64_t rows : {1, 2}) {
    for (int64_t n : {33, 70, 100, 1000}) {
      ProblemSpec spec{.groups = 2, .m = 1 + rows, .n = n, .k = 300, .sizes = {1, rows}};
      spec.lhs = spec.rhs = DType::kBF16;
      ExpectUncachedBits(spec);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(GemvOnEveryIsa, ThreadsThatDivideTheColumns) {
  ProblemSpec spec = FewRowsSpec(600, 300);
  spec.group_offset = 3;
  spec.local_groups = 5;
  ExpectUncachedBits(spec, {2, 5});
}

}  // namespace
}  // namespace raggemm::test
