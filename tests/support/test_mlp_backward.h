// Makes calls of MoeMlpBackward for tests, with gradients of all operands that are not quantized.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "raggemm/moe_mlp.h"
#include "tests/support/test_mlp.h"

namespace raggemm::test {

class TestMlpBackward {
 public:
  explicit TestMlpBackward(const MlpSpec& spec);

  MoeMlpExtents Extents() const;
  void ClearGradients();  // Sets every byte of the gradients to 0x55, to show what a call writes.
  // Clears the gradients and runs the call. Expects no write after the end of the workspace.
  absl::Status Run(const Options& options);
  std::vector<uint64_t> Bits() const;

  TestMlp mlp;
  std::vector<FloatTensor> tensors;
  MoeMlpBackwardProblem problem;
};

// Returns the bits of all gradients, in the order of kMlpGradientSlots. Calls GroupedGemm and activations separately,
// in scalar code on one thread.
std::vector<uint64_t> GradientSequenceBits(const TestMlpBackward& call);

}  // namespace raggemm::test
