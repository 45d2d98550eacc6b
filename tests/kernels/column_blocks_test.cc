#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/plan/block.h"
#include "kernels/plan/rhs_layout.h"
#include "kernels/plan/rhs_mode.h"
#include "kernels/plan/schedule.h"
#include "kernels/plan/strategy.h"
#include "kernels/run/prefetch.h"
#include "kernels/target/isa.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/check.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/test_mlp.h"
#include "tests/support/test_mlp_backward.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

// Returns a problem whose groups have 0 to 40 rows: no register tile, one, or several.
ProblemSpec BlockedSpec(int64_t n, int64_t k, int64_t block_cols) {
  return {.groups = 8,
          .m = 75,
          .n = n,
          .k = k,
          .sizes = {1, 5, 0, 2, 40, 9, 4, 13},
          .rhs_layout = Layout::kColumnBlocks,
          .block_cols = block_cols};
}

// Expects the specified bits twice: with the CPU of the host, and with a CPU whose L2 cache (one byte) cannot hold rhs.
void ExpectBits(const ProblemSpec& spec, absl::Span<const int64_t> threads = {1}) {
  for (bool cached : {true, false}) {
    TestProblem test(spec);
    Options options{.executor = Executor::kOpenMp, .threads = 1};
    if (!cached) options.cpu.l2_bytes = 1;
    ASSERT_TRUE(GivesExpectedBits(test, options, threads)) << Describe(spec);
  }
}

TEST(ColumnBlocksOnEveryIsa, EveryTypeAndExtent) {
  for (DType rhs : kAllFloats) {
    for (int64_t k : {1, 31, 257}) {
      for (int64_t n : {1, 33, 64, 300}) {
        for (int64_t block_cols = kLeastBlockColumns; block_cols <= kMostBlockColumns; block_cols *= 8) {
          ProblemSpec spec = BlockedSpec(n, k, block_cols);
          spec.rhs = rhs;
          spec.out = n == 64 ? rhs : DType::kF32;
          if (!Sampled(6)) continue;
          ExpectBits(spec);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(ColumnBlocksOnEveryIsa, ExtentsOfZero) {
  for (auto [n, k] : {std::pair{0, 40}, {40, 0}, {0, 0}}) ExpectBits(BlockedSpec(n, k, 64));
}

TEST(ColumnBlocksOnEveryIsa, Bf16ByEachRuleAndSplitF32) {
  for (ArithmeticId rule : kSplittingRules) {
    for (Precision precision : {Precision::kDefault, Precision::kBf16X3, Precision::kBf16X6}) {
      for (int64_t k : {1, 33, 300}) {
        ProblemSpec spec = BlockedSpec(150, k, 128);
        if (precision == Precision::kDefault) spec.lhs = spec.rhs = DType::kBF16;
        spec.bf16_sums = rule;
        spec.precision = precision;
        spec.bias = spec.alpha = k == 33;
        if (!Sampled(4)) continue;
        ExpectBits(spec);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(ColumnBlocksOnEveryIsa, Integers) {
  for (DType lhs : kAllBytes) {
    for (DType rhs : kAllBytes) {
      ProblemSpec spec = BlockedSpec(100, 130, 64);
      spec.lhs = lhs;
      spec.rhs = rhs;
      spec.out = DType::kS32;
      ExpectBits(spec);
    }
  }
}

// If two or four elements share a byte, the last of 131 columns ends within a byte.
TEST(ColumnBlocksOnEveryIsa, QuantizedWeights) {
  const std::vector<int64_t> scales[] = {{}, {0}, {0, 1}, {32, 1}, {64, 0}, {1, 1}};
  for (DType rhs : kAllQuantized) {
    for (const std::vector<int64_t>& scale : scales) {
      for (int64_t n : {131, 300}) {
        ProblemSpec spec = BlockedSpec(n, 320, n == 300 ? 256 : 128);
        spec.lhs = rhs == DType::kF8E5M2 || scale.empty() ? DType::kBF16 : DType::kF32;
        spec.rhs = rhs;
        spec.rhs_scale = scale;
        spec.scale_type = n == 300 ? DType::kF32 : DType::kF8E8M0FNU;
        if (n == 131 && FormatOf(rhs).IsInteger()) spec.rhs_zero = scale;
        if (!Sampled(12)) continue;
        ExpectBits(spec);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(ColumnBlocksOnEveryIsa, WithProblemsReplicasAndAnOffset) {
  ProblemSpec spec = BlockedSpec(100, 70, 64);
  spec.problems = 2;
  spec.replicas = 3;
  spec.groups = 3;
  spec.sizes = {1, 5, 60, 0, 0, 75, 9, 4, 13, 30, 2, 8, 1, 1, 1, 40, 0, 3};
  spec.local_groups = 2;
  spec.group_offset = 1;
  spec.c = spec.beta = spec.bias = true;
  ExpectBits(spec);
}

TEST(ColumnBlocksOnEveryIsa, ThreadsThatDivideTheColumns) {
  for (int64_t block_cols : {32, 256}) {
    ProblemSpec spec = BlockedSpec(600, 300, block_cols);
    spec.group_offset = 3;
    spec.local_groups = 5;
    ExpectBits(spec, {2, 16});
  }
}

class ColumnBlocks : public IsaTest {
 protected:
  void MakeScheduleOf(const ProblemSpec& spec, int64_t threads = 1) {
    problem_ = std::make_unique<TestProblem>(spec);
    workspace_.resize(1000);
    Options options{.executor = Executor::kOpenMp, .isa = GetParam(), .threads = threads};
    schedule_ = MakeSchedule(problem_->problem, options, absl::MakeSpan(workspace_)).value();
  }

  std::unique_ptr<TestProblem> problem_;
  std::vector<int64_t> workspace_;
  Schedule schedule_;
};
RAGGEMM_FOR_EACH_ISA(ColumnBlocks);

// For a tile of one row, prefetches must follow each other in memory without gaps, up to the last line of rhs.
TEST_P(ColumnBlocks, AreReadAndPrefetchedInTheOrderOfMemory) {
  MakeScheduleOf({.groups = 1,
                  .m = 1,
                  .n = 1024,
                  .k = 1024,
                  .sizes = {1},
                  .rhs_layout = Layout::kColumnBlocks,
                  .block_cols = 256});
  ASSERT_EQ(schedule_.work.gemm_tiles, 1);
  const TileTask task(schedule_, 0);
  Prefetcher prefetcher(schedule_, task, 0);
  Block block;
  int64_t at = 0, last_prefetched = -1;
  ASSERT_TRUE(FirstBlock(schedule_.tile, task, block));
  for (bool more = true; more;) {
    EXPECT_EQ(block.rhs.IndexOf(block.k, block.col), at);
    at += block.steps * block.cols;
    Block next = block;
    more = NextBlock(schedule_.tile, task, next);
    prefetcher.StartBlock(block, more ? &next : nullptr);
    Panel panel;
    for (int64_t col = 0; col < block.cols; col += panel.cols) {
      panel = NextPanel(schedule_.tile, task, block.cols - col);
      Prefetch& prefetch = *prefetcher.For(Prefetcher::Work::kKernel);
      for (; prefetch.count > 0; --prefetch.count, prefetch.line += 64) {
        const int64_t line = (prefetch.line - block.rhs.data) / 64;
        if (last_prefetched >= 0) {
          EXPECT_EQ(line, last_prefetched + 1);
        }
        last_prefetched = line;
      }
    }
    block = next;
  }
  EXPECT_EQ(at, 1024 * 1024);
  EXPECT_EQ(last_prefetched, 1024 * 1024 * 4 / 64 - 1);
}

struct BadBlocks {
  std::function<void(GroupedGemmProblem&)> spoil;
  std::vector<std::string> message;
};

TEST(BadColumnBlocks, AreRefused) {
  const BadBlocks cases[] = {
      {[](GroupedGemmProblem& p) {
         p.rhs.dims = {8, 2, 70};
       },
       {"rhs: shape is [8,2,70]", "[G,T,K,B]"}},
      {[](GroupedGemmProblem& p) {
         p.rhs.dims = {8, 4, 70, 16};
       },
       {"rhs: shape is [8,4,70,16]", "32 to 256"}},
      {[](GroupedGemmProblem& p) {
         p.rhs.dims = {8, 1, 35, 96};
       },
       {"rhs: shape is [8,1,35,96]", "a power of two"}},
      {[](GroupedGemmProblem& p) {
         p.rhs.dims = {8, 1, 35, 512};
       },
       {"rhs: shape is [8,1,35,512]", "32 to 256"}},
      {[](GroupedGemmProblem& p) {
         p.rhs.dims = {8, 1, 70, 64};
       },
       {"rhs: has 1 column blocks of 64", "must have 2"}},
      {[](GroupedGemmProblem& p) {
         p.rhs.dims = {8, 2, 69, 64};
       },
       {"lhs has K = 70", "rhs has K = 69"}},
      {[](GroupedGemmProblem& p) { p.rhs.is_trans = true; }, {"rhs", "not transposed"}},
      {[](GroupedGemmProblem& p) { p.rhs.axis_boundary = 2; }, {"rhs", "[G,T,K,B]"}},
      {[](GroupedGemmProblem& p) { p.lhs.layout = Layout::kColumnBlocks; }, {"lhs: layout is COLUMN_BLOCKS", "rhs"}},
      {[](GroupedGemmProblem& p) { p.out.layout = Layout::kColumnBlocks; }, {"out: layout is COLUMN_BLOCKS", "rhs"}},
  };
  for (const BadBlocks& bad : cases) {
    ExpectParts(ErrorOf(BlockedSpec(100, 70, 64), [&](TestProblem& test) { bad.spoil(test.problem); }), bad.message);
  }
}

TEST(BadColumnBlocks, AreRefusedInOtherModes) {
  for (RaggedMode mode : {RaggedMode::kRaggedK, RaggedMode::kRaggedN, RaggedMode::kUniform}) {
    TestProblem test({.mode = mode, .groups = 2, .m = 8, .n = 9, .k = 10, .sizes = {3, 4}});
    test.problem.rhs.layout = Layout::kColumnBlocks;
    EXPECT_THAT(GroupedGemm(test.problem).message(), testing::HasSubstr("rhs: layout is COLUMN_BLOCKS"));
  }
}

TEST_P(ColumnBlocks, GiveAnMlpTheBitsOfStridedWeights) {
  for (Gate gate : {Gate::kNone, Gate::kSeparate, Gate::kHalves, Gate::kInterleaved}) {
    for (DType weights : {DType::kF32, DType::kBF16}) {
      for (int blocked : {1, 2, 3}) {
        MlpSpec spec = {.x = weights, .weights = weights, .gate = gate};
        if (blocked & 1) spec.up_layout = Layout::kColumnBlocks;
        if (blocked & 2) spec.down_layout = Layout::kColumnBlocks;
        TestMlp mlp(spec);
        ASSERT_EQ(mlp.Run({.executor = Executor::kOpenMp, .isa = GetParam(), .threads = 2}), absl::OkStatus());
        EXPECT_EQ(mlp.OutBits(), SequenceBits(mlp));
      }
    }
  }
}

TEST(BadColumnBlocks, AreRefusedInAnMlp) {
  TestMlp mlp({});
  mlp.problem.up_layout = Layout::kColumnBlocks;
  EXPECT_THAT(mlp.Run({}).message(), testing::HasSubstr("w_up: shape is [4,40,24], must have 4 axes"));
  FloatTensor narrow(DType::kF32, {4, 2, 40, 32});
  mlp.problem.w_up = narrow.array;
  mlp.problem.w_gate.reset();
  mlp.problem.b_gate.reset();
  EXPECT_THAT(mlp.Run({}).message(), testing::HasSubstr("w_up: has 2 column blocks of 32, must have 1 for N = 24"));
  TestMlp down({});
  down.problem.down_layout = Layout::kColumnBlocks;
  EXPECT_THAT(down.Run({}).message(), testing::HasSubstr("w_down: shape is [4,24,40], must have 4 axes"));
}

TEST(BadColumnBlocks, HaveNoGradients) {
  for (bool is_down : {false, true}) {
    TestMlpBackward call({.hidden = 32, .intermediate = 32, .biases = false});
    MoeMlpProblem& problem = call.problem.forward;
    (is_down ? problem.down_layout : problem.up_layout) = Layout::kColumnBlocks;
    (is_down ? problem.w_down : problem.w_up).dims = {4, 1, 32, 32};
    if (!is_down) problem.w_gate->dims = {4, 1, 32, 32};
    EXPECT_EQ(call.Run({}).message(),
              absl::StrCat(is_down ? "w_down" : "w_up", ": layout is COLUMN_BLOCKS, which has no gradients"));
  }
}

}  // namespace
}  // namespace raggemm::test
