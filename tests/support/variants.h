// Systematic and random choices of problems.
#ifndef RAGGEMM_TESTS_SUPPORT_VARIANTS_H_
#define RAGGEMM_TESTS_SUPPORT_VARIANTS_H_

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "absl/types/span.h"
#include "raggemm/format.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/problem_spec.h"

namespace raggemm::test {

// How bf16 with bf16 is summed, and of these what sums f32 that is split, too.
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

// The same problem in every way that its mode can be stored: transposes, layouts, group axes.
std::vector<ProblemSpec> StorageVariants(const ProblemSpec& base);

// Three groups, one of them empty, and rows, columns or steps of k behind the last.
ProblemSpec ThreeGroups(RaggedMode mode);

// Any mode, storage, dtypes, batch, offset and optional operands; about a million multiply-adds at most.
ProblemSpec RandomSpec(Random& random);

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_SUPPORT_VARIANTS_H_
