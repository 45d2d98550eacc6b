// Makes expert MLPs for tests, with random operands in guarded buffers. Computes the expected bits by separate
// products.
#pragma once

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
#include "tests/oracle/activated.h"
#include "tests/oracle/values.h"
#include "tests/support/problem_spec.h"

namespace raggemm::test {

// Storage of the gate's weights: w_gate (kSeparate), the first half of the columns of w_up (kHalves), or the even
// columns of w_up (kInterleaved). kNone: the MLP has no gate.
enum class Gate : uint8_t { kNone, kSeparate, kHalves, kInterleaved };

struct MlpSpec {
  int64_t tokens = 9, hidden = 40, intermediate = 24;
  std::vector<int64_t> sizes = {3, 0, 7, 2};
  std::optional<int64_t> local = std::nullopt;  // Number of groups with weights, by default all.
  int64_t offset = 0;                           // Index of the first group with weights.
  int64_t behind = 2;                           // Number of rows after the last group. Their token indices are invalid.
  DType x = DType::kF32, weights = DType::kF32, out = DType::kF32;
  std::optional<DType> down = std::nullopt;  // Type of w_down, if it differs from `weights`.
  // Scales and zero points of all quantized weights, in the form of ProblemSpec::rhs_scale.
  std::vector<int64_t> scale = {}, zero = {};
  DType scale_type = DType::kF32;
  bool alphas = false;             // Factors of the products. All weights must be quantized.
  DType sizes_type = DType::kS32;  // Type of group sizes, row_tokens, row_slots and group_offset.
  std::optional<ArithmeticId> bf16_sums = std::nullopt;
  std::optional<int64_t> lhs_block = std::nullopt;
  Gate gate = Gate::kSeparate;
  Activation activation = Activation::kSilu;
  std::optional<float> activation_alpha = std::nullopt, activation_limit = std::nullopt;
  // Blocks of kColumnBlocks have 32 columns in w_up, 64 in w_gate, and 128 in w_down.
  Layout up_layout = Layout::kStrided, down_layout = Layout::kStrided;
  bool up_is_trans = false, down_is_trans = false, biases = true, row_weights = true;
  WeightOn weight_on = WeightOn::kOutput;
  bool row_slots = false;
  uint32_t seed = 7;

  int64_t groups() const { return static_cast<int64_t>(sizes.size()); }
  int64_t local_groups() const { return local.value_or(groups()); }
  ActivationNumbers numbers() const { return NumbersFor(activation, activation_alpha, activation_limit); }
  DType down_type() const { return down.value_or(weights); }
  // Returns the type of the activated values, `a` of moe_mlp.h.
  DType type_of_a() const { return IsMatrix(down_type()) ? down_type() : x; }
};
// Returns a random MLP that may have gradients.
MlpSpec RandomMlpSpec(std::mt19937& random);
// Returns a random MLP, which may also have an lhs_block and blocked layouts. Layouts have no gradients.
MlpSpec RandomForwardSpec(std::mt19937& random);

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
  // Sets every byte of out to 0x55, and runs the MLP.
  absl::Status Run(const Options& options);
  std::vector<uint64_t> OutBits() const;
  void ClearOut();
  bool SurroundingsIntact() const;
  absl::Span<int64_t> Workspace() { return {static_cast<int64_t*>(workspace.array.data), workspace_size}; }
  int64_t TokenOf(int64_t row) const { return ToInteger(row_tokens.array, row); }
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
  const int64_t rows;
  const int64_t columns;  // Columns of w_up: twice `intermediate` if w_up also holds the gate.
  // All operands. The weights are strided here, whatever the layouts of `problem`.
  FloatTensor x, row_tokens, sizes, offset, w_up, w_gate, w_down, b_up, b_gate, b_down, row_weights, row_slots, out;
  std::deque<FloatTensor> quant_params;
  std::deque<FloatTensor> blocks;  // Copies of weights, if `problem` has them in another layout.
  size_t workspace_size;
  FloatTensor workspace;
  MoeMlpProblem problem;
  MoeMlpProblem strided;  // `problem` with the scales and zero points of strided weights.

 private:
  void OrderByBlocks(int64_t n, std::optional<Array>& values);
  Array InLayout(const Array& weights, Layout layout, int64_t width);
  void AddQuantParams(const Array& weights, std::optional<Array>& scale, std::optional<Array>& zero);
};

// Returns the gathered rows of x: the token of each row, multiplied by the row's weight if weight_on is kInput.
FloatTensor Gathered(const TestMlp& mlp);

enum class Part : uint8_t { kUp, kGate, kDown };
// Returns a product of the MLP. Its weights are strided.
GroupedGemmProblem ProductOf(const TestMlp& mlp, Part part, const Array& lhs, const Array& out);

// The results of the first products, before the activation.
struct FirstProducts {
  // Products with w_up and w_gate, plus biases, in f32 [rows, columns]. `gate` is unused without w_gate.
  FloatTensor up, gate;
  // Returns {gate, up} of one activated element, or {up, 0} without a gate.
  std::pair<float, float> GateAndUp(const TestMlp& mlp, int64_t row, int64_t column) const;
};
FirstProducts FirstProductsOf(const TestMlp& mlp, const FloatTensor& gathered);
FloatTensor ActivatedRows(const TestMlp& mlp, const FirstProducts& first);

void Compute(const GroupedGemmProblem& gemm);

// Returns the expected bits of out. Computes each step separately, in scalar code on one thread: gather, products with
// w_up and w_gate, activation, product with w_down, sums over the rows of each token.
std::vector<uint64_t> SequenceBits(const TestMlp& mlp);
// Returns the bits of the sum of weight(r) * d[r] over the rows r of each token, rounded to the type `out`. Adds the
// rows of a token in the order of rows, or in the order of their row_slots if `by_slot`.
std::vector<uint64_t> BitsOfSums(const TestMlp& mlp, const Array& d, DType out, float (TestMlp::*weight)(int64_t) const,
                                 bool by_slot);
// Returns the bits of an element, or Format::NaN for every NaN, because the sign and payload of a NaN are not
// specified.
uint64_t BitsOfAnyNaN(const Array& array, int64_t index);

}  // namespace raggemm::test
