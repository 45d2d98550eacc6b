// Expert MLPs to test: random operands that end at cliffs, and what must come out by the products one by one.
#ifndef RAGGEMM_TESTS_SUPPORT_TEST_MLP_H_
#define RAGGEMM_TESTS_SUPPORT_TEST_MLP_H_

#include <cstdint>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "kernels/element.h"
#include "raggemm/moe_mlp.h"
#include "tests/support/problem_spec.h"

namespace raggemm::test {

enum class Gate : uint8_t { kNone, kSeparate, kHalves, kInterleaved };

struct MlpSpec {
  int64_t tokens = 9, hidden = 40, intermediate = 24;
  std::vector<int64_t> sizes = {3, 0, 7, 2};
  int64_t local = 4, offset = 0;  // groups with weights, and the first
  int64_t behind = 2;             // rows in no group, of tokens that do not exist
  DType x = DType::kF32, weights = DType::kF32, out = DType::kF32;
  Gate gate = Gate::kSeparate;
  Activation activation = Activation::kSilu;
  bool up_is_trans = false, down_is_trans = false, biases = true, row_weights = true;
  uint32_t seed = 7;
};
MlpSpec RandomMlpSpec(std::mt19937& random);

struct FloatTensor {
  FloatTensor(DType dtype, const std::vector<int64_t>& dims) : tensor(dtype, dims), array(tensor.array()) {}
  void FillWithRandom(std::mt19937& random, double scale = 1);
  double At(int64_t i) const { return ToDouble(array, i); }
  Tensor tensor;
  Array array;
};

class TestMlp {
 public:
  explicit TestMlp(const MlpSpec& spec);

  MoeMlpExtents Extents() const;
  // Into an out that was full of 0x55.
  absl::Status Run(const Options& options);
  std::vector<uint64_t> OutBits() const;
  void ClearOut();
  bool SurroundingsIntact() const;
  absl::Span<int64_t> Workspace() { return {static_cast<int64_t*>(workspace.array.data), workspace_size}; }
  int64_t TokenOf(int64_t row) const { return static_cast<int32_t*>(row_tokens.array.data)[row]; }
  bool IsGated() const { return spec.gate != Gate::kNone; }

  const MlpSpec spec;
  std::mt19937 random;
  const int64_t rows, columns;  // that groups have; of the first product
  FloatTensor x, row_tokens, sizes, offset, w_up, w_gate, w_down, b_up, b_gate, b_down, row_weights, out;
  size_t workspace_size;
  FloatTensor workspace;
  MoeMlpProblem problem;
};

// Gather, products by GroupedGemm in scalar code on one thread, activation, product, sums of tokens.
std::vector<uint64_t> SequenceBits(const TestMlp& mlp);
// The last of it, of the rows of d, which is f32.
std::vector<uint64_t> BitsOfSums(const TestMlp& mlp, const Array& d);

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_SUPPORT_TEST_MLP_H_
