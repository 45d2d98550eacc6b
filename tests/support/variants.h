// Lists of types, rules and modes to loop over, and systematic and random choices of problems.
#pragma once

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "absl/types/span.h"
#include "raggemm/format.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/problem_spec.h"

namespace raggemm::test {

// The numeric rules that bf16_sums can name. The first two also support f32 that is split into bf16 parts.
inline constexpr ArithmeticId kBf16Rules[] = {ArithmeticId::kPairs, ArithmeticId::kTiles, ArithmeticId::kF32,
                                              ArithmeticId::kMmla};
inline constexpr auto kSplittingRules = absl::MakeConstSpan(kBf16Rules).first(2);
inline constexpr RaggedMode kAllModes[] = {RaggedMode::kRaggedM, RaggedMode::kRaggedK, RaggedMode::kRaggedN,
                                           RaggedMode::kUniform, RaggedMode::kAllRagged};

template <Role role>
constexpr auto DTypesOf() {
  constexpr auto is_one = [](const Format& format) { return format.role == role; };
  std::array<DType, std::count_if(std::begin(kFormats), std::end(kFormats), is_one)> all{};
  auto next = all.begin();
  for (const Format& format : kFormats) {
    if (is_one(format)) *next++ = format.dtype;
  }
  return all;
}
inline constexpr auto kAllFloats = DTypesOf<Role::kMatrix>();
inline constexpr auto kAllQuantized = DTypesOf<Role::kQuantized>();
inline constexpr DType kAllBytes[] = {DType::kS8, DType::kU8};
inline constexpr auto kAllSizesTypes = DTypesOf<Role::kSizes>();

// Returns the problem with each storage that the mode permits: transposed or not, in each layout, and with or without a
// group axis of lhs.
std::vector<ProblemSpec> StorageVariants(const ProblemSpec& base);

// Returns a problem with three groups, one of them empty.
ProblemSpec ThreeGroups(RaggedMode mode);

// Returns a random problem with at most about 20 million multiply-adds.
ProblemSpec RandomSpec(Random& random);

}  // namespace raggemm::test
