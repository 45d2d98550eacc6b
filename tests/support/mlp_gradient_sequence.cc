// Computes the gradients of an expert MLP by the separate steps that include/raggemm/moe_mlp.h lists, each for all rows
// at once.
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/target/isa.h"
#include "raggemm/element.h"
#include "raggemm/grouped_gemm.h"
#include "tests/oracle/values.h"
#include "tests/support/test_mlp.h"
#include "tests/support/test_mlp_backward.h"

namespace raggemm::test {
namespace {

class Sequence {
 public:
  explicit Sequence(const TestMlpBackward& call)
      : mlp_(call.mlp),
        gradients_(call.problem.gradients),
        rows_(mlp_.rows),
        inner_(mlp_.spec.intermediate),
        hidden_(mlp_.spec.hidden),
        x_(Gathered(mlp_)),
        first_(FirstProductsOf(mlp_, x_)),
        a_(ActivatedRows(mlp_, first_)),
        e_(mlp_.spec.type_of_a(), {rows_, hidden_}),
        f_(mlp_.spec.type_of_a(), {rows_, hidden_}),
        back_(DType::kF32, {rows_, inner_}),
        up_(TypeOfUp(), {rows_, mlp_.columns}),
        gate_(TypeOfUp(), {rows_, inner_}) {
    for (int64_t i = 0; i < rows_ * hidden_; ++i) {
      StoreRounded(e_.array, i, mlp_.out.At(mlp_.TokenOf(i / hidden_) * hidden_ + i % hidden_));
      StoreRounded(f_.array, i, WeightOf(i / hidden_) * static_cast<float>(e_.At(i)));
    }
    Compute(Back(Part::kDown, e_, back_));
    for (int64_t row = 0; row < rows_; ++row) ActivateGradient(row);
  }

  std::vector<uint64_t> Bits() const {
    const MlpSpec& spec = mlp_.spec;
    const FloatTensor ones = Ones(e_.array.dtype), ones_of_up = Ones(TypeOfUp());
    std::vector<uint64_t> bits;
    const auto append = [&](const std::vector<uint64_t>& more) { bits.insert(bits.end(), more.begin(), more.end()); };
    if (gradients_.x) append(GradientOfX());
    if (gradients_.row_weights) append(OfRowWeights());
    append(GradientOfGroups(gradients_.w_up, x_, up_, spec.up_is_trans));
    append(GradientOfGroups(gradients_.w_gate, x_, gate_, spec.up_is_trans));
    append(GradientOfGroups(gradients_.w_down, a_, f_, spec.down_is_trans));
    append(GradientOfGroups(gradients_.b_up, ones_of_up, up_, false));
    append(GradientOfGroups(gradients_.b_gate, ones_of_up, gate_, false));
    append(GradientOfGroups(gradients_.b_down, ones, f_, false));
    return bits;
  }

 private:
  DType TypeOfUp() const { return IsMatrix(mlp_.spec.weights) ? mlp_.spec.weights : mlp_.spec.x; }
  float WeightOf(int64_t row) const { return mlp_.OutputWeight(row); }

  GroupedGemmProblem Back(Part part, const FloatTensor& rows, const FloatTensor& out) const {
    GroupedGemmProblem gemm = ProductOf(mlp_, part, rows.array, out.array);
    gemm.rhs.is_trans = !gemm.rhs.is_trans;
    gemm.bias.reset();
    gemm.lhs_block.reset();
    return gemm;
  }

  void ActivateGradient(int64_t row) {
    const KernelRow& scalar = KernelsFor(Isa::kScalar, kArithmetics[0]);
    const FormatKernels& kernels = KernelsOf(scalar, TypeOfUp());
    raggemm::ActivateGradient* const run = kernels.activate_gradient[static_cast<int>(mlp_.spec.activation)];
    const auto at = [](const FloatTensor& to, int64_t i) {
      return static_cast<char*>(to.array.data) + BytesOf(to.array.dtype, i);
    };
    for (int64_t j = 0; j < inner_; ++j) {
      const auto [gate, up] = first_.GateAndUp(mlp_, row, j);
      const int64_t first = row * mlp_.columns;
      const std::pair<char*, char*> to =
          mlp_.spec.gate == Gate::kNone       ? std::pair{at(up_, first + j), nullptr}
          : mlp_.spec.gate == Gate::kSeparate ? std::pair{at(gate_, row * inner_ + j), at(up_, first + j)}
          : mlp_.spec.gate == Gate::kHalves   ? std::pair{at(up_, first + j), at(up_, first + inner_ + j)}
                                              : std::pair{at(up_, first + 2 * j), at(up_, first + 2 * j + 1)};
      run({.forward = {.count = 1,
                       .gate = &gate,
                       .up = mlp_.IsGated() ? &up : nullptr,
                       .interleaved = false,
                       .numbers = mlp_.spec.numbers(),
                       .out = nullptr},
           .a = static_cast<const float*>(back_.array.data) + row * inner_ + j,
           .weight = WeightOf(row),
           .gate = to.first,
           .up = to.second});
    }
  }

  // Returns the gradient of the rows that w_up and w_gate multiply: du x w_up^T + dv x w_gate^T.
  FloatTensor GradientOfRows() const {
    FloatTensor sums(DType::kF32, {rows_, hidden_});
    Compute(Back(Part::kUp, up_, sums));
    if (mlp_.problem.w_gate) {
      GroupedGemmProblem gemm = Back(Part::kGate, gate_, sums);
      gemm.c = sums.array;
      Compute(gemm);
    }
    return sums;
  }

  std::vector<uint64_t> GradientOfX() const {
    return BitsOfSums(mlp_, GradientOfRows().array, gradients_.x->dtype, &TestMlp::InputWeight, /*by_slot=*/false);
  }

  // Returns a dot product. Elements j, j + 16, and so on are multiplied and summed in sum j of 16. Then sums 8 to 15
  // are added to sums 0 to 7, and so on until one sum is left.
  static float Dot(const FloatTensor& x, int64_t x_at, const FloatTensor& y, int64_t y_at, int64_t count) {
    float sums[16] = {};
    for (int64_t j = 0; j < count; ++j) {
      sums[j % 16] = std::fma(static_cast<float>(x.At(x_at + j)), static_cast<float>(y.At(y_at + j)), sums[j % 16]);
    }
    for (int half = 8; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
    }
    return sums[0];
  }

  std::vector<uint64_t> OfRowWeights() const {
    std::vector<float> of_bias(static_cast<size_t>(rows_)), sums(static_cast<size_t>(rows_ + mlp_.spec.behind));
    const bool on_input = mlp_.spec.weight_on == WeightOn::kInput;
    if (const std::optional<Array>& bias = mlp_.problem.b_down; bias && !on_input) {
      GroupedGemmProblem gemm = ProductOf(mlp_, Part::kUp, e_.array, {of_bias.data(), DType::kF32, {rows_, 1}});
      static_cast<Array&>(gemm.rhs) = {bias->data, bias->dtype, {bias->dims[0], hidden_, 1}};
      gemm.rhs.is_trans = false;
      gemm.bias.reset();
      gemm.lhs_block.reset();
      gemm.rhs_scale.reset();
      gemm.rhs_zero.reset();
      gemm.alpha.reset();
      Compute(gemm);
    }
    const FloatTensor of_rows = GradientOfRows();
    int64_t row = 0;
    for (int64_t g = 0; g < mlp_.spec.groups(); ++g) {
      for (int64_t i = 0; i < mlp_.spec.sizes[g]; ++i, ++row) {
        if (!mlp_.IsProcessed(g)) continue;
        sums[row] = on_input ? Dot(mlp_.x, mlp_.TokenOf(row) * hidden_, of_rows, row * hidden_, hidden_)
                             : of_bias[row] + Dot(a_, row * inner_, back_, row * inner_, inner_);
      }
    }
    return BitsOfAll({sums.data(), DType::kF32, {static_cast<int64_t>(sums.size())}});
  }

  FloatTensor Ones(DType dtype) const {
    FloatTensor ones(dtype, {rows_, 1});
    for (int64_t i = 0; i < rows_; ++i) StoreRounded(ones.array, i, 1);
    return ones;
  }

  // Returns the bits of the gradients of weights or biases. The gradient of a group is `rows`^T x `by` over the rows of
  // this group. With `is_trans` it is `by`^T x `rows`.
  std::vector<uint64_t> GradientOfGroups(const std::optional<Array>& gradient, const FloatTensor& rows,
                                         const FloatTensor& by, bool is_trans) const {
    if (!gradient) return {};
    const Array &lhs = is_trans ? by.array : rows.array, &rhs = is_trans ? rows.array : by.array;
    const FloatTensor out(gradient->dtype, {mlp_.spec.local_groups(), lhs.dims[1], rhs.dims[1]});
    GroupedGemmProblem gemm;
    static_cast<Array&>(gemm.lhs) = lhs;
    static_cast<Array&>(gemm.rhs) = rhs;
    static_cast<Array&>(gemm.out) = out.array;
    gemm.lhs.is_trans = true;
    gemm.lhs.first_dims = gemm.rhs.first_dims = mlp_.sizes.array;
    gemm.group_offset = mlp_.problem.group_offset;
    gemm.bf16_sums = mlp_.problem.bf16_sums;
    Compute(gemm);
    return BitsOfAll(out.array);
  }

  static std::vector<uint64_t> BitsOfAll(const Array& array) {
    std::vector<uint64_t> bits;
    for (int64_t i = 0; i < ElementCount(array); ++i) bits.push_back(BitsOfAnyNaN(array, i));
    return bits;
  }

  const TestMlp& mlp_;
  const MoeMlpGradients& gradients_;
  const int64_t rows_, inner_, hidden_;
  const FloatTensor x_;
  const FirstProducts first_;
  const FloatTensor a_, e_, f_, back_;
  FloatTensor up_, gate_;
};

}  // namespace

std::vector<uint64_t> GradientSequenceBits(const TestMlpBackward& call) { return Sequence(call).Bits(); }

}  // namespace raggemm::test
