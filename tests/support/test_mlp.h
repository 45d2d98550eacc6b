// Expert MLPs to test: random operands that end at cliffs, and what must come out by the products one by one.
#ifndef RAGGEMM_TESTS_SUPPORT_TEST_MLP_H_
#define RAGGEMM_TESTS_SUPPORT_TEST_MLP_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "raggemm/element.h"
#include "raggemm/format.h"
#include "raggemm/moe_mlp.h"
#include "tests/oracle/values.h"
#include "tests/support/problem_spec.h"

namespace raggemm::test {

enum class Gate : uint8_t { kNone, kSeparate, kHalves, kInterleaved };

struct MlpSpec {
  int64_t tokens = 9, hidden = 40, intermediate = 24;
  std::vector<int64_t> sizes = {3, 0, 7, 2};
  std::optional<int64_t> local = std::nullopt;  // groups with weights, where these are not all
  int64_t offset = 0;                           // the first of them
  int64_t behind = 2;                           // rows in no group, of tokens that do not exist
  DType x = DType::kF32, weights = DType::kF32, out = DType::kF32;
  std::optional<DType> down = std::nullopt;  // of w_down, where it has another type
  // Factors of quantized weights, as ProblemSpec has them, for all three.
  std::vector<int64_t> scale = {}, zero = {};
  DType scale_type = DType::kF32;
  DType sizes_type = DType::kS32;  // of row_tokens and group_offset, too
  std::optional<ArithmeticId> bf16_sums = std::nullopt;
  Gate gate = Gate::kSeparate;
  Activation activation = Activation::kSilu;
  bool up_is_trans = false, down_is_trans = false, biases = true, row_weights = true;
  WeightOn weight_on = WeightOn::kOutput;
  bool row_slots = false;
  uint32_t seed = 7;

  int64_t groups() const { return static_cast<int64_t>(sizes.size()); }
  int64_t local_groups() const { return local.value_or(groups()); }
  DType down_type() const { return down.value_or(weights); }
  DType type_of_a() const { return IsMatrix(down_type()) ? down_type() : x; }
};
MlpSpec RandomMlpSpec(std::mt19937& random);

struct FloatTensor {
  FloatTensor(DType dtype, const std::vector<int64_t>& dims) : tensor(dtype, dims), array(tensor.array()) {}
  void FillWithRandom(std::mt19937& random, double scale = 1);
  void FillWithScales(std::mt19937& random);
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
  int64_t TokenOf(int64_t row) const { return ToInteger(row_tokens.array, row); }
  // Returns the weight that multiplies d of a row.
  float OutputWeight(int64_t row) const {
    return spec.row_weights && spec.weight_on == WeightOn::kOutput ? static_cast<float>(row_weights.At(row)) : 1;
  }
  float InputWeight(int64_t row) const {
    return spec.row_weights && spec.weight_on == WeightOn::kInput ? static_cast<float>(row_weights.At(row)) : 1;
  }
  bool IsGated() const { return spec.gate != Gate::kNone; }
  bool IsProcessed(int64_t group) const { return group >= spec.offset && group < spec.offset + spec.local_groups(); }

  const MlpSpec spec;
  std::mt19937 random;
  const int64_t rows, columns;  // that groups have; of the first product
  FloatTensor x, row_tokens, sizes, offset, w_up, w_gate, w_down, b_up, b_gate, b_down, row_weights, row_slots, out;
  std::deque<FloatTensor> factors;
  size_t workspace_size;
  FloatTensor workspace;
  MoeMlpProblem problem;

 private:
  void AddFactors(const Array& weights, std::optional<Array>& scale, std::optional<Array>& zero);
};

// Returns x of each row of the groups, times its weight if that is on the input.
FloatTensor Gathered(const TestMlp& mlp);

enum class Part : uint8_t { kUp, kGate, kDown };
// A product of rows of all groups, lhs x the weights of one part.
GroupedGemmProblem ProductOf(const TestMlp& mlp, Part part, const Array& lhs, const Array& out);

// What a row's activation is computed from.
struct FirstProducts {
  FloatTensor up, gate;  // f32; gate as large, also where there is none
  // What the activation takes for gate and up of an element of a.
  std::pair<float, float> GateAndUp(const TestMlp& mlp, int64_t row, int64_t column) const;
};
FirstProducts FirstProductsOf(const TestMlp& mlp, const FloatTensor& gathered);
FloatTensor ActivatedRows(const TestMlp& mlp, const FirstProducts& first);

// By scalar code on one thread.
void Compute(const GroupedGemmProblem& gemm);

// Gather, products by GroupedGemm in scalar code on one thread, activation, product, sums of tokens.
std::vector<uint64_t> SequenceBits(const TestMlp& mlp);
// Returns the bits of sum over the rows r of each token of weight(r) * d[r], rounded to `out`. d is f32. The rows of a
// token are added in the order of row_slots if `by_slot`.
std::vector<uint64_t> BitsOfSums(const TestMlp& mlp, const Array& d, DType out, float (TestMlp::*weight)(int64_t) const,
                                 bool by_slot);
// BitsOf, but of a NaN those of the format's own, for nobody says which it is.
uint64_t BitsOfAnyNaN(const Array& array, int64_t index);

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_SUPPORT_TEST_MLP_H_
