// Tests the bits of products of rounded rows with Layout::kWordBlocks, on every ISA of the host.
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/target/isa.h"
#include "raggemm/element.h"
#include "raggemm/grouped_gemm.h"
#include "tests/oracle/values.h"
#include "tests/support/check.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/test_mlp.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

constexpr DType kCodes[] = {DType::kS8, DType::kU8, DType::kS4, DType::kU4, DType::kF4E2M1FN};
constexpr DType kScales[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E8M0FNU, DType::kF8E4M3FN};

// Steps of k in a block of lhs and in a block of scales, and in a row. 0: the whole row.
struct Steps {
  int64_t block, scales, k;
};

ProblemSpec Blocked(DType rhs, int64_t m, int64_t n, const Steps& steps) {
  ProblemSpec spec = OneGroup(DType::kBF16, rhs, m, n, steps.k);
  spec.rhs_layout = Layout::kWordBlocks;
  spec.lhs_block = steps.block;
  spec.rhs_scale = {steps.scales, 1};
  spec.gap_elements = n % 32 == 0 ? 0 : 1;  // With a gap, blocks are not aligned.
  return spec;
}

// Adds zero points in the shape of the scales, if rhs has integers.
ProblemSpec WithZeros(ProblemSpec spec) {
  if (FormatOf(spec.rhs).IsInteger()) spec.rhs_zero = spec.rhs_scale;
  return spec;
}

// Divides the rows into groups of these sizes.
ProblemSpec WithGroups(ProblemSpec spec, std::vector<int64_t> sizes) {
  spec.groups = static_cast<int64_t>(sizes.size());
  spec.m = 0;
  for (int64_t size : sizes) spec.m += size;
  spec.sizes = std::move(sizes);
  return spec;
}

// GEMVs have a function for each number of rows. The last of 40 and of 300 columns ends within a block.
TEST(WordBlocksOnEveryIsa, EveryNumberOfRowsOfAGemv) {
  for (DType rhs : kCodes) {
    for (const Steps& steps : {Steps{0, 0, 4}, {0, 0, 2048}, {32, 32, 160}, {32, 64, 192}, {128, 32, 384}}) {
      for (int64_t n : {32, 40, 300}) {
        for (int64_t m = 1; m <= 8; ++m) {
          if (!Sampled(4)) continue;
          const ProblemSpec spec = Blocked(rhs, m, n, steps);
          ASSERT_TRUE(GivesExpectedBits(spec));
          ASSERT_TRUE(GivesExpectedBits(WithZeros(spec)));
        }
      }
    }
  }
}

TEST(WordBlocksOnEveryIsa, RegisterTiles) {
  for (DType rhs : kCodes) {
    for (const Steps& steps :
         {Steps{0, 0, 4}, {32, 0, 36}, {0, 0, 96}, {32, 32, 160}, {64, 16, 192}, {128, 128, 512}, {0, 64, 1088}}) {
      for (int64_t n : {32, 40, 300}) {
        if (!Sampled(4)) continue;
        const ProblemSpec spec = WithGroups(Blocked(rhs, 0, n, steps), {9, 60, 0, 16, 23, 11, 37, 14});
        ASSERT_TRUE(GivesExpectedBits(spec));
        ASSERT_TRUE(GivesExpectedBits(WithZeros(spec)));
      }
    }
  }
}

// Each extent takes every remainder of the sizes of tiles and of the steps that an instruction multiplies at once.
TEST(WordBlocksOnEveryIsa, TileEdges) {
  for (DType rhs : kCodes) {
    for (int64_t n = 1; n <= 100; n += 1 + n / 12) {
      if (!Sampled(3)) continue;
      ASSERT_TRUE(GivesExpectedBits(WithZeros(WithGroups(Blocked(rhs, 0, n, {32, 0, 36}), {1, 5, 12, 17, 33, 40}))));
    }
    for (int64_t k = 4; k <= 264; k += 4) {
      if (!Sampled(3)) continue;
      ASSERT_TRUE(GivesExpectedBits(WithZeros(WithGroups(Blocked(rhs, 0, 40, {k % 3 == 0 ? 0 : 64, 0, k}), {3, 26}))));
    }
  }
}

TEST(WordBlocksOnEveryIsa, EveryTypeOfRowsAndScales) {
  for (DType rhs : kCodes) {
    for (DType lhs : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (DType type : kScales) {
        for (const Steps& steps : {Steps{32, 32, 160}, {32, 128, 256}, {64, 16, 192}, {32, 0, 100}, {0, 0, 100}}) {
          if (!Sampled(4)) continue;
          ProblemSpec spec = WithGroups(Blocked(rhs, 0, 72, steps), {1, 3, 0, 20});
          spec.lhs = spec.out = lhs;
          spec.scale_type = type;
          ASSERT_TRUE(GivesExpectedBits(spec));
        }
      }
    }
  }
}

TEST(WordBlocksOnEveryIsa, EveryShapeOfScalesAndZeros) {
  const std::vector<std::vector<int64_t>> shapes = {{},      {0},     {1},      {0, 0},  {0, 1},    {32, 1},
                                                    {16, 1}, {64, 8}, {16, 24}, {32, 0}, {32, 1, 0}};
  for (const std::vector<int64_t>& scale : shapes) {
    for (const std::vector<int64_t>& zero : shapes) {
      for (DType rhs : {DType::kS8, DType::kU4}) {
        if (!Sampled(6)) continue;
        const auto shares = [](const std::vector<int64_t>& blocks) { return blocks.size() >= 2 && blocks[1] > 1; };
        const int64_t n = shares(scale) || shares(zero) ? 96 : 72;  // Columns share values only in whole blocks.
        ProblemSpec spec = WithGroups(Blocked(rhs, 0, n, {32, 0, 192}), {15, 1, 14});
        spec.rhs_scale = scale;
        spec.rhs_zero = zero;
        ASSERT_TRUE(GivesExpectedBits(spec));
      }
    }
  }
}

// K is longer than a KC block of word blocks, 4096 steps. Blocks of lhs and stretches are shorter or longer. The first or
// the last element of a row is the largest, so it sets the scale of its block.
TEST(WordBlocksOnEveryIsa, LongBlocks) {
  for (const Steps& steps : {Steps{32, 32, 4160},
                             {128, 64, 4608},
                             {0, 64, 4416},
                             {0, 128, 8320},
                             {1536, 1536, 3072},
                             {0, 0, 2052},
                             {0, 0, 9000}}) {
    for (DType rhs : {DType::kS8, DType::kU4}) {
      for (int64_t m : {1, 7, 40}) {
        const ProblemSpec spec = WithZeros(Blocked(rhs, m, 72, steps));
        TestProblem test(spec);
        for (int64_t i = 0; i < m; ++i) {
          StoreRounded(test.problem.lhs, i * steps.k + (rhs == DType::kS8 ? 0 : steps.k - 1), 100);
        }
        ASSERT_TRUE(GivesExpectedBits(test)) << Describe(spec);
      }
    }
  }
}

// Blocks of scales begin in one KC block and end in the next one.
TEST(WordBlocksOnEveryIsa, LongBlocksOfScales) {
  for (DType type : kScales) {
    for (const auto& [m, steps] : {std::pair{1, Steps{32, 6144, 12288}}, {40, {32, 1536, 3072}}}) {
      ProblemSpec spec = Blocked(DType::kS4, m, 136, steps);
      spec.scale_type = type;
      ASSERT_TRUE(GivesExpectedBits(spec));
    }
  }
}

// All products are as large as they can be. Sums of 16 bits would overflow or saturate.
TEST(WordBlocksOnEveryIsa, LargestProducts) {
  for (DType rhs : kCodes) {
    for (const auto& [element, zero] : {std::pair{-128.0, 127.0}, {255.0, 0.0}, {127.0, -128.0}, {0.0, 255.0}}) {
      for (int64_t m : {1, 7, 40}) {
        ProblemSpec spec = Blocked(rhs, m, 72, {0, 0, 128});
        if (FormatOf(rhs).IsInteger()) spec.rhs_zero = {0, 1};
        TestProblem test(spec);
        for (int64_t i = 0; i < ElementCount(test.problem.lhs); ++i) StoreRounded(test.problem.lhs, i, m == 7 ? -1 : 1);
        for (int64_t i = 0; i < ElementCount(test.problem.rhs); ++i) StoreRounded(test.problem.rhs, i, element);
        for (int64_t i = 0; test.problem.rhs_zero && i < 72; ++i) StoreRounded(*test.problem.rhs_zero, i, zero);
        ASSERT_TRUE(GivesExpectedBits(test)) << Describe(spec);
      }
    }
  }
}

// Rows have denormals, large numbers, infinities, NaN and numbers between two codes.
TEST(WordBlocksOnEveryIsa, SpecialValues) {
  for (DType rhs : kCodes) {
    for (int64_t m : {1, 6, 40}) {
      ProblemSpec spec = Blocked(rhs, m, 40, {32, 32, 128});
      spec.special_values = true;
      ASSERT_TRUE(GivesExpectedBits(spec));
    }
  }
}

// Scales of rhs are denormal, infinite, NaN and zero. Rows have numbers about 1, or denormals.
TEST(WordBlocksOnEveryIsa, SpecialScales) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double scales[] = {0x1p-149, 0x1p-127, 0x1.5p-120, 0x1p127, infinity, std::nan(""), 0, -1.5};
  for (DType rhs : kCodes) {
    for (DType type : kScales) {
      for (int64_t m : {1, 6, 40}) {
        ProblemSpec spec = Blocked(rhs, m, 72, {32, 32, 96});
        spec.lhs = DType::kF32;
        spec.scale_type = type;
        TestProblem test(spec);
        const Array& scale = *test.problem.rhs_scale;
        for (int64_t i = 0; i < ElementCount(scale); ++i) {
          if (FormatOf(type).bits == 8) {
            static constexpr uint8_t kBytes[] = {0, 1, 254, 255, 127};
            static_cast<uint8_t*>(scale.data)[i] = kBytes[i % 24 % 5];
          } else {
            StoreRounded(scale, i, scales[i % 24 % 8]);
          }
        }
        ASSERT_TRUE(GivesExpectedBits(test)) << Describe(spec);
        for (int64_t i = 0; i < ElementCount(test.problem.lhs); ++i) {
          StoreRounded(test.problem.lhs, i, static_cast<double>(i * 37 % 381 - 190) * 0x1p-149);
        }
        ASSERT_TRUE(GivesExpectedBits(test)) << Describe(spec);
      }
    }
  }
}

// The longest stretch that is allowed, with the largest products. If kernels multiply codes by a factor, sums almost
// fill s32.
TEST(WordBlocksOnEveryIsa, TheLongestStretch) {
  struct Extremes {
    DType rhs;
    double element, zero;
  };
  for (const Extremes& c : {Extremes{DType::kS8, -128, 127},
                            {DType::kS8, 127, -128},
                            {DType::kU8, 255, 0},
                            {DType::kU8, 0, 255},
                            {DType::kS4, -8, 7},
                            {DType::kS4, 7, -8},
                            {DType::kU4, 15, 0},
                            {DType::kU4, 0, 15},
                            {DType::kF4E2M1FN, 6, 0},
                            {DType::kF4E2M1FN, -6, 0}}) {
    for (int64_t m : {1, 9}) {
      if (!Sampled(4)) continue;
      ProblemSpec spec = Blocked(c.rhs, m, 8, {0, 0, 1 << 16});
      if (FormatOf(c.rhs).IsInteger()) spec.rhs_zero = {0};
      TestProblem test(spec);
      for (int64_t i = 0; i < ElementCount(test.problem.lhs); ++i) StoreRounded(test.problem.lhs, i, 1);
      for (int64_t i = 0; i < ElementCount(test.problem.rhs); ++i) StoreRounded(test.problem.rhs, i, c.element);
      if (test.problem.rhs_zero) StoreRounded(*test.problem.rhs_zero, 0, c.zero);
      ASSERT_TRUE(GivesExpectedBits(test)) << Describe(spec);
    }
  }
}

// Computes twice: with the CPU of the host, and with a CPU whose L2 cache (one byte) cannot hold rhs.
TEST(WordBlocksOnEveryIsa, ThreadsThatDivideTheColumns) {
  for (DType rhs : {DType::kS8, DType::kF4E2M1FN}) {
    for (bool cached : {true, false}) {
      if (!Sampled(2)) continue;
      ProblemSpec spec = WithGroups(Blocked(rhs, 0, 600, {32, 32, 320}), {1, 5, 0, 2, 40, 9, 4, 13});
      spec.group_offset = 3;
      spec.local_groups = 5;
      TestProblem test(spec);
      Options options{.executor = Executor::kOpenMp};
      if (!cached) options.cpu.l2_bytes = 1;
      ASSERT_TRUE(GivesExpectedBits(test, options, {1, 2, 16})) << Describe(spec);
    }
  }
}

TEST(WordBlocksOnEveryIsa, EveryOperandOfTheEpilogue) {
  for (DType rhs : {DType::kU8, DType::kS4}) {
    ProblemSpec spec = Blocked(rhs, 40, 72, {32, 0, 160});
    spec.groups = 4;
    spec.sizes = {3, 17, 0, 12};
    spec.local_groups = 3;
    spec.group_offset = 1;
    spec.lhs_rows = 13;
    spec.rhs_scale = {1};
    spec.c = spec.bias = spec.alpha = spec.beta = true;
    spec.activation = Activation::kSilu;
    spec.gate = DType::kBF16;
    ASSERT_TRUE(GivesExpectedBits(spec));
    spec.problems = 2, spec.replicas = 2;
    for (int i = 0; i < 3; ++i) spec.sizes.insert(spec.sizes.end(), {5, 0, 21, 14});
    spec.parameter_rows = ParameterRows::kPerReplica;
    ASSERT_TRUE(GivesExpectedBits(spec));
  }
}

TEST(WordBlocksOnEveryIsa, ExtentsOfZero) {
  for (const auto& [m, n, k] : {std::tuple{3, 40, 0}, {0, 40, 32}, {3, 0, 32}}) {
    ProblemSpec spec = Blocked(DType::kS4, m, n, {32, 0, k});
    spec.bias = spec.alpha = true;
    ASSERT_TRUE(GivesExpectedBits(spec));
  }
}

class WordBlocks : public IsaTest {};
RAGGEMM_FOR_EACH_ISA(WordBlocks);

TEST_P(WordBlocks, GiveAnMlpTheBitsOfStridedWeights) {
  for (Gate gate : {Gate::kNone, Gate::kSeparate, Gate::kHalves, Gate::kInterleaved}) {
    for (DType weights : kCodes) {
      for (int blocked : {1, 2, 3}) {
        if (!Sampled(4)) continue;
        MlpSpec spec = {.x = DType::kBF16, .weights = weights, .scale = {0, 1}, .lhs_block = 32, .gate = gate};
        if (blocked & 1) spec.up_layout = Layout::kWordBlocks;
        if (blocked & 2) spec.down_layout = Layout::kWordBlocks;
        TestMlp mlp(spec);
        ASSERT_EQ(mlp.Run({.executor = Executor::kOpenMp, .isa = GetParam(), .threads = 2}), absl::OkStatus());
        EXPECT_EQ(mlp.OutBits(), SequenceBits(mlp)) << FormatOf(weights).name << " " << blocked;
      }
    }
  }
}

// Rows of tokens are quantized where they are stored, unless they have weights, or a pass selects rows.
TEST_P(WordBlocks, QuantizeTheRightTokensOfAnMlp) {
  const auto expect = [](MlpSpec spec) {
    spec.x = DType::kBF16;
    spec.weights = DType::kS8;
    spec.scale = {0, 1};
    spec.lhs_block = 32;
    TestMlp mlp(spec);
    ASSERT_EQ(mlp.Run({.isa = GetParam()}), absl::OkStatus());
    EXPECT_EQ(mlp.OutBits(), SequenceBits(mlp));
  };
  for (int64_t offset : {1, 2}) expect({.sizes = {3, 300, 7, 2}, .local = 2, .offset = offset});
  MlpSpec weighted;
  weighted.row_weights = true;
  weighted.weight_on = WeightOn::kInput;
  expect(weighted);
  MlpSpec passes = {.tokens = 5, .hidden = 24, .intermediate = 9, .sizes = {8000, 0, 3, 9000}, .local = 3, .offset = 1};
  passes.row_slots = true;
  expect(passes);
}

// ---- errors ----

void ExpectError(
    const ProblemSpec& spec, const std::vector<std::string>& parts,
    const std::function<void(GroupedGemmProblem&)>& spoil = [](GroupedGemmProblem&) {}) {
  ExpectParts(ErrorOf(spec, [&](TestProblem& test) { spoil(test.problem); }), parts);
}

const std::string kLayoutOfRhs = "rhs: layout is WORD_BLOCKS, ";

TEST(BadWordBlocks, HaveNoBlockOfLhs) {
  for (DType rhs : kCodes) {
    ExpectError(Blocked(rhs, 4, 40, {32, 0, 64}), {kLayoutOfRhs + "which is only for rounded rows, with lhs_block"},
                [](GroupedGemmProblem& p) { p.lhs_block.reset(); });
  }
}

TEST(BadWordBlocks, HaveOtherTypes) {
  ExpectError(Blocked(DType::kS2, 4, 40, {32, 0, 64}), {kLayoutOfRhs + "dtype is s2, must have 8 or 4 bits"});
  for (DType rhs : {DType::kF8E4M3FN, DType::kBF16}) {
    ExpectError(Blocked(rhs, 4, 40, {32, 0, 64}), {absl::StrCat("lhs_block: rhs is ", NameOf(rhs)), "f4e2m1fn"});
  }
}

TEST(BadWordBlocks, HaveOtherShapes) {
  ExpectError(Blocked(DType::kS8, 4, 40, {32, 0, 6}), {kLayoutOfRhs + "K is 6, must be a multiple of 4"});
  const ProblemSpec spec = Blocked(DType::kS8, 4, 40, {32, 0, 64});
  ExpectError(spec, {kLayoutOfRhs + "has blocks of 64, must be 32"}, [](GroupedGemmProblem& p) {
    p.rhs.dims = {1, 1, 64, 64};
  });
  ExpectError(spec, {"rhs: has 1 column blocks of 32, must have 2"}, [](GroupedGemmProblem& p) {
    p.rhs.dims = {1, 1, 64, 32};
  });
  ExpectError(spec, {"rhs: shape is [1,64,40]", "[G,T,K,B]"}, [](GroupedGemmProblem& p) { p.rhs.dims = {1, 64, 40}; });
  ExpectError(spec, {"rhs", "not transposed"}, [](GroupedGemmProblem& p) { p.rhs.is_trans = true; });
}

TEST(BadWordBlocks, HaveScalesOrZerosOfStridedColumns) {
  const ProblemSpec spec = WithZeros(Blocked(DType::kS8, 4, 40, {32, 0, 64}));
  ExpectError(spec, {"rhs_scale: axis 2 of shape [1,1,40] is 40, must be 1 or divide 64"}, [](GroupedGemmProblem& p) {
    p.rhs_scale->dims = {1, 1, 40};
  });
  ExpectError(spec, {"rhs_zero: axis 2 of shape [1,1,40] is 40, must be 1 or divide 64"}, [](GroupedGemmProblem& p) {
    p.rhs_zero->dims = {1, 1, 40};
  });
  ExpectError(Blocked(DType::kS8, 4, 8, {32, 0, 64}),
              {"rhs_scale: axis 2 of shape [1,1,8] is 8, must be 1 or 32 unless N, 8, is a multiple of 32"},
              [](GroupedGemmProblem& p) {
                p.rhs_scale->dims = {1, 1, 8};
              });
}

TEST(BadWordBlocks, AreOtherOperandsOrInOtherModes) {
  const ProblemSpec spec = Blocked(DType::kS8, 4, 40, {32, 0, 64});
  ExpectError(spec, {"lhs: layout is WORD_BLOCKS, which is for rhs with ragged M"},
              [](GroupedGemmProblem& p) { p.lhs.layout = Layout::kWordBlocks; });
  ExpectError(spec, {"out: layout is WORD_BLOCKS, which is for rhs with ragged M"},
              [](GroupedGemmProblem& p) { p.out.layout = Layout::kWordBlocks; });
  ProblemSpec uniform = {.mode = RaggedMode::kUniform, .groups = 2, .m = 8, .n = 32, .k = 32};
  uniform.rhs = DType::kS8;
  uniform.lhs_block = 32;
  ExpectError(uniform, {"rhs: layout is WORD_BLOCKS, which is for rhs with ragged M"},
              [](GroupedGemmProblem& p) { p.rhs.layout = Layout::kWordBlocks; });
}

TEST(BadWordBlocks, AreRefusedInAnMlp) {
  for (bool is_down : {false, true}) {
    const std::string name = is_down ? "w_down" : "w_up";
    MlpSpec spec = {.weights = DType::kS8, .lhs_block = 32, .gate = Gate::kNone};
    (is_down ? spec.down_layout : spec.up_layout) = Layout::kWordBlocks;
    TestMlp without_block(spec);
    without_block.problem.lhs_block.reset();
    EXPECT_EQ(without_block.Run({}).message(),
              name + ": layout is WORD_BLOCKS, which is only for rounded rows, with lhs_block");
    spec.hidden = spec.intermediate = 38;
    EXPECT_EQ(TestMlp(spec).Run({}).message(), name + ": layout is WORD_BLOCKS, K is 38, must be a multiple of 4");
  }
}

}  // namespace
}  // namespace raggemm::test
