// Systematic and random choices of problems.
#ifndef RAGGEMM_TESTS_SUPPORT_VARIANTS_H_
#define RAGGEMM_TESTS_SUPPORT_VARIANTS_H_

#include <vector>

#include "raggemm/grouped_gemm.h"
#include "tests/support/problem_spec.h"

namespace raggemm::test {

inline constexpr RaggedMode kAllModes[] = {RaggedMode::kRaggedM, RaggedMode::kRaggedK, RaggedMode::kRaggedN,
                                           RaggedMode::kUniform, RaggedMode::kAllRagged};
inline constexpr DType kAllFloats[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64};

// The same problem in every way that its mode can be stored: transposes, layouts, group axes.
std::vector<ProblemSpec> StorageVariants(const ProblemSpec& base);

// Any mode, storage, dtypes, batch, offset and optional operands; about a million multiply-adds at most.
ProblemSpec RandomSpec(Random& random);

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_SUPPORT_VARIANTS_H_
