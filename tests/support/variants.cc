#include "tests/support/variants.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace raggemm::test {
namespace {

// A way to store an operand. ProblemSpec::lhs_flipped explains `flipped`.
struct Storage {
  bool flipped;
  Layout layout;
};

std::vector<Storage> StoragesOf(bool ragged_last, bool ragged_last_when_flipped, bool may_have_blocks = false) {
  std::vector<Storage> storages = {{false, Layout::kStrided}, {true, Layout::kStrided}};
  if (ragged_last) storages.push_back({false, Layout::kPacked});
  if (ragged_last_when_flipped) storages.push_back({true, Layout::kPacked});
  if (may_have_blocks) storages.push_back({false, Layout::kColumnBlocks});
  return storages;
}

template <typename T, size_t n>
T Choose(const T (&choices)[n], Random& random) {
  return choices[random.Below(n)];
}

DType Choose(absl::Span<const DType> choices, Random& random) {
  return choices[random.Below(static_cast<int64_t>(choices.size()))];
}

void ChooseSizes(ProblemSpec& spec, Random& random) {
  spec.groups = random.Below(16) == 0 ? 0 : 1 + random.Below(9);
  if (spec.mode == RaggedMode::kAllRagged) {
    for (std::vector<int64_t>* sizes : {&spec.sizes, &spec.n_sizes, &spec.k_sizes}) {
      for (int64_t g = 0; g < spec.groups; ++g) sizes->push_back(random.Below(4) == 0 ? 0 : random.Below(50));
    }
    spec.slack = random.Below(3);
    return;
  }
  if (spec.mode == RaggedMode::kUniform) return;
  if (random.Below(3) == 0) {
    spec.problems = random.Below(16) == 0 ? 0 : 1 + random.Below(3);
    spec.replicas = spec.lhs_grouped ? 1 : 1 + random.Below(3);
  }
  const int64_t extent = spec.mode == RaggedMode::kRaggedM   ? spec.m
                         : spec.mode == RaggedMode::kRaggedN ? spec.n
                                                             : spec.k;
  std::vector<int64_t> shared;
  for (int64_t segment = 0; segment < spec.problems * spec.replicas; ++segment) {
    const bool repeat = spec.mode == RaggedMode::kRaggedN && segment % spec.replicas != 0;
    if (!repeat) shared = random.Sizes(spec.groups, extent);
    spec.sizes.insert(spec.sizes.end(), shared.begin(), shared.end());
  }
}

void ChooseOptionalOperands(ProblemSpec& spec, Random& random) {
  const bool ragged_m = spec.mode == RaggedMode::kRaggedM, ragged_k = spec.mode == RaggedMode::kRaggedK;
  if ((ragged_m || ragged_k) && spec.problems * spec.groups > 0 && random.Coin()) {
    spec.local_groups = 1 + random.Below(spec.groups);
    spec.group_offset = random.Below(spec.groups - *spec.local_groups + 1);
  }
  spec.c = random.Coin();
  spec.alpha = random.Coin();
  spec.beta = spec.c && random.Coin();
  spec.bias = spec.mode != RaggedMode::kRaggedN && spec.mode != RaggedMode::kAllRagged && random.Coin();
  const bool is_f64 = spec.lhs == DType::kF64 || spec.rhs == DType::kF64 || spec.out == DType::kF64;
  do {
    spec.bias_type = Choose(kAllFloats, random);
  } while (spec.bias_type == DType::kF64 && !is_f64);
  if (spec.out == DType::kS32) spec.bias_type = DType::kS32;
  spec.parameter_rows =
      ragged_k ? Choose({ParameterRows::kScalar, ParameterRows::kPerGroup}, random)
               : Choose({ParameterRows::kScalar, ParameterRows::kPerGroup, ParameterRows::kPerReplica}, random);
}

void ChooseBlocksOfExperts(ProblemSpec& spec, Random& random) {
  const bool is_f64 = spec.lhs == DType::kF64 || spec.rhs == DType::kF64 || spec.out == DType::kF64;
  if (!is_f64 && spec.out != DType::kS32 && random.Below(3) == 0) {
    if (random.Coin()) spec.gate = Choose({DType::kF32, DType::kF32, DType::kBF16, DType::kF16}, random);
    do {
      spec.activation = static_cast<Activation>(random.Below(kActivationCount));
    } while (kNeedsGate[static_cast<int>(*spec.activation)] && !spec.gate);
    const auto number = [&] { return .25F * static_cast<float>(1 + random.Below(16)); };
    if (random.Coin()) SetNumbers(*spec.activation, {number(), number()}, spec);
  }
  if (spec.mode == RaggedMode::kRaggedM && !spec.lhs_flipped && !IsQuantized(spec.lhs) && random.Below(3) == 0) {
    spec.lhs_rows = 1 + random.Below(40);
  }
}

// Chooses quantized operands with scales and zero points. Changes extents so that rows fill whole bytes.
void ChooseQuantized(ProblemSpec& spec, Random& random) {
  const bool blocks =
      (spec.mode == RaggedMode::kRaggedM || spec.mode == RaggedMode::kUniform) && spec.lhs_layout != Layout::kPacked;
  const auto blocks_per_value = [&]() -> std::vector<int64_t> {
    static const std::vector<int64_t> kShapes[] = {{}, {0}, {1}, {0, 1}, {1, 0}, {4, 4}, {1, 1}, {32, 4}, {4, 32}};
    return kShapes[random.Below(blocks ? 9 : 3)];
  };
  const bool whole = spec.mode != RaggedMode::kRaggedN && spec.mode != RaggedMode::kAllRagged && !spec.lhs_flipped &&
                     !(spec.mode == RaggedMode::kRaggedK && spec.rhs_flipped);
  const auto format = [&] {
    const DType any = Choose(kAllQuantized, random);
    return whole || FormatOf(any).bits == 8 ? any : DType::kF8E4M3FN;
  };
  for (int64_t* extent : {&spec.m, &spec.n, &spec.k}) {
    *extent = *extent >= 32 ? *extent / 32 * 32 : *extent >= 16 ? 4 : 0;
  }
  spec.out = Choose({DType::kF32, DType::kBF16, DType::kF64}, random);
  spec.scale_type = Choose({DType::kF32, DType::kBF16, DType::kF8E8M0FNU, DType::kF8E4M3FN}, random);
  const int64_t which = random.Below(3);
  if (which != 0) spec.lhs = format(), spec.lhs_scale = blocks_per_value();
  if (which != 1) spec.rhs = format(), spec.rhs_scale = blocks_per_value();
  if (spec.lhs == DType::kF8E5M2 && spec.rhs == spec.lhs) spec.lhs = DType::kBF16, spec.lhs_scale.clear();
  if (FormatOf(spec.rhs).IsInteger() && IsQuantized(spec.rhs) && random.Coin()) spec.rhs_zero = blocks_per_value();
  // A group may begin at any row. So along the axis that groups divide, a block of scales has one row or the whole
  // axis.
  if (spec.mode == RaggedMode::kRaggedM && spec.lhs_scale.size() == 2) {
    int64_t& block = spec.lhs_scale[spec.lhs_flipped ? 1 : 0];
    block = std::min<int64_t>(block, 1);
  }
  // If both operands had blocks of scales, the blocks would need the same length along k. So lhs gets a single scale.
  if (spec.lhs_scale.size() == 2 && spec.rhs_scale.size() == 2) spec.lhs_scale = {0};
}

// Chooses an lhs_block, and operands that it allows. Changes extents so that rows fill whole bytes and blocks fit.
void ChooseRoundedRows(ProblemSpec& spec, Random& random) {
  static constexpr DType kFloats[] = {DType::kF32, DType::kBF16, DType::kF16};
  spec.lhs = Choose(kFloats, random);
  spec.rhs = Choose({DType::kS8, DType::kU8, DType::kS4, DType::kU4, DType::kS2, DType::kF4E2M1FN}, random);
  spec.out = Choose(kFloats, random);
  spec.lhs_flipped = false;
  spec.lhs_layout = Layout::kStrided;
  spec.scale_type = Choose({DType::kF32, DType::kBF16, DType::kF16, DType::kF8E8M0FNU, DType::kF8E4M3FN}, random);
  spec.lhs_block = Choose<int64_t>({0, 32, 64, 128, 256, 1024}, random);
  // Steps of k and columns that share a scale or a zero point. 0: all.
  int64_t steps = 0;
  if (random.Below(3) != 0 && spec.k != 0) {
    do {
      steps = Choose<int64_t>({16, 16, 32, 32, 48, 64, 128, 256, 2048}, random);
    } while (*spec.lhs_block != 0 && *spec.lhs_block % steps != 0 && steps % *spec.lhs_block != 0);
    spec.k = steps * (1 + random.Below(std::max<int64_t>(800 / steps, 2)));
  }
  const int64_t columns = Choose<int64_t>({0, 1, 1, 1, 4}, random);
  spec.k = (spec.k + 3) / 4 * 4 - (spec.rhs_flipped || steps != 0 || spec.k == 0 ? 0 : random.Below(4));
  const bool rows_end_at_any_column = spec.rhs_flipped || IsBlocked(spec.rhs_layout);
  if (!rows_end_at_any_column || columns == 4) spec.n = spec.n / 4 * 4;
  if (spec.rhs_layout == Layout::kColumnBlocks && FormatOf(spec.rhs).bits >= 4 && random.Below(3) != 0) {
    spec.rhs_layout = Layout::kWordBlocks;
    spec.k = (spec.k + 3) / 4 * 4;
    if (columns > 1) spec.n = spec.n / kWordColumns * kWordColumns;
  }
  spec.m = std::min(spec.m, 2'000'000 / std::max<int64_t>(spec.n * spec.k, 1));
  const auto values = [&]() -> std::vector<int64_t> {
    const std::vector<int64_t> blocks =
        spec.rhs_flipped ? std::vector<int64_t>{columns, steps} : std::vector<int64_t>{steps, columns};
    const std::vector<int64_t> shapes[] = {{}, {0}, {1}, blocks, blocks, blocks, {blocks[0], blocks[1], 0}};
    return shapes[random.Below(7)];
  };
  spec.rhs_scale = values();
  if (FormatOf(spec.rhs).IsInteger() && random.Coin()) spec.rhs_zero = values();
}

}  // namespace

std::vector<ProblemSpec> StorageVariants(const ProblemSpec& base) {
  const bool m = base.mode == RaggedMode::kRaggedM, k = base.mode == RaggedMode::kRaggedK;
  const bool n = base.mode == RaggedMode::kRaggedN, all = base.mode == RaggedMode::kAllRagged;
  std::vector<ProblemSpec> variants;
  for (const Storage& lhs : StoragesOf(false, m || k)) {
    for (const Storage& rhs : StoragesOf(n, k, m)) {
      for (Layout out : {Layout::kStrided, Layout::kPacked}) {
        for (bool lhs_grouped : {false, true}) {
          if ((out == Layout::kPacked || lhs_grouped) && !n) continue;
          ProblemSpec spec = base;
          spec.lhs_flipped = lhs.flipped;
          spec.rhs_flipped = rhs.flipped;
          spec.lhs_grouped = lhs_grouped;
          spec.lhs_layout = all ? Layout::kPacked : lhs.layout;
          spec.rhs_layout = all ? Layout::kPacked : rhs.layout;
          spec.out_layout = all ? Layout::kPacked : out;
          variants.push_back(spec);
        }
      }
    }
  }
  return variants;
}

ProblemSpec ThreeGroups(RaggedMode mode) {
  ProblemSpec spec{.mode = mode, .groups = 3, .m = 40, .n = 50, .k = 30, .sizes = {9, 0, 14}};
  if (mode == RaggedMode::kAllRagged) {
    spec.n_sizes = {20, 4, 35};
    spec.k_sizes = {8, 3, 0};
    spec.slack = 5;
  }
  return spec;
}

ProblemSpec RandomSpec(Random& random) {
  ProblemSpec base;
  const bool rounds_rows = random.Below(6) == 0;
  base.mode = rounds_rows ? Choose({RaggedMode::kRaggedM, RaggedMode::kUniform}, random) : Choose(kAllModes, random);
  const std::vector<ProblemSpec> variants = StorageVariants(base);
  ProblemSpec spec = variants[random.Below(static_cast<int64_t>(variants.size()))];
  // Most extents are small. Half of the problems have one large extent.
  const int64_t limit[] = {40, 70, 40};
  int64_t* extents[] = {&spec.m, &spec.n, &spec.k};
  for (int axis = 0; axis < 3; ++axis)
    *extents[axis] = random.Below(8) == 0 ? random.Below(2) : 1 + random.Below(limit[axis]);
  if (random.Coin()) *extents[random.Below(3)] = 200 + random.Below(600);
  spec.lhs = Choose(kAllFloats, random);
  spec.rhs = Choose(kAllFloats, random);
  spec.out = Choose(kAllFloats, random);
  if (random.Below(4) == 0) {
    spec.lhs = spec.rhs = DType::kBF16;
    if (random.Below(3) != 0) spec.bf16_sums = Choose(kBf16Rules, random);
  }
  if (rounds_rows) {
    ChooseRoundedRows(spec, random);
  } else if (random.Below(5) == 0) {
    spec.lhs = Choose(kAllBytes, random);
    spec.rhs = Choose(kAllBytes, random);
    spec.out = DType::kS32;
  } else if (random.Below(8) == 0) {
    spec.lhs = spec.rhs = DType::kF32;
    if (spec.out == DType::kF64) spec.out = DType::kF32;
    spec.precision = random.Coin() ? Precision::kBf16X3 : Precision::kBf16X6;
    spec.bf16_sums.reset();
    if (random.Below(3) != 0) spec.bf16_sums = kSplittingRules[random.Below(2)];
  }
  if (!rounds_rows && random.Below(4) == 0 && spec.precision == Precision::kDefault && spec.out != DType::kS32) {
    ChooseQuantized(spec, random);
  }
  spec.block_cols = kLeastBlockColumns << random.Below(4);
  spec.sizes_type = Choose(kAllSizesTypes, random);
  spec.gap_elements = random.Below(2);
  spec.special_values = random.Below(8) == 0;
  spec.seed = static_cast<uint64_t>(random.Below(int64_t{1} << 40));
  ChooseSizes(spec, random);
  ChooseOptionalOperands(spec, random);
  ChooseBlocksOfExperts(spec, random);
  return spec;
}

}  // namespace raggemm::test
