// Problems made from a few numbers, with random data in guarded buffers.
#ifndef RAGGEMM_TESTS_SUPPORT_PROBLEM_SPEC_H_
#define RAGGEMM_TESTS_SUPPORT_PROBLEM_SPEC_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "raggemm/grouped_gemm.h"
#include "tests/support/guarded_buffer.h"

namespace raggemm::test {

// The seed of every random test: RAGGEMM_TEST_SEED where it is set, else a fixed one.
uint64_t TestSeed();

// Returns true for one of `one_in` calls in the mean, as RAGGEMM_TEST_SEED seeds it. Returns true for every call if
// RAGGEMM_FULL_TESTS is set: then loops over exhaustive grids are complete.
bool Sampled(int64_t one_in);

// SplitMix64: good enough, fast, and the same numbers everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  int64_t Below(int64_t limit) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(limit)); }
  bool Coin() { return Below(2) == 1; }
  double Unit() { return static_cast<double>(static_cast<int64_t>(Next())) * 0x1p-63; }  // in [-1, 1)
  // Non-negative, `groups` of them, some zero, sum at most `total` and often equal to it.
  std::vector<int64_t> Sizes(int64_t groups, int64_t total);

 private:
  uint64_t state_;
};

enum class ParameterRows : uint8_t { kScalar, kPerGroup, kPerReplica };

// A problem in numbers. Only the extents that the mode has count.
struct ProblemSpec {
  RaggedMode mode = RaggedMode::kRaggedM;
  int64_t problems = 1, replicas = 1, groups = 1;
  // Extents of each problem and replica; along the ragged axis it may exceed the sum of the sizes. All ragged: unused.
  int64_t m = 1, n = 1, k = 1;
  std::vector<int64_t> sizes = {};  // [problems, replicas, groups] along the ragged axis; all ragged: along M
  std::vector<int64_t> n_sizes = {}, k_sizes = {};  // all ragged
  // Stored the other way round: [K,M] for lhs of ragged M, [M,K] for lhs of ragged K, [N,K] for rhs, and so on.
  bool lhs_flipped = false, rhs_flipped = false;
  bool lhs_grouped = false;  // ragged N: [G,M,K] rather than [M,K]
  Layout lhs_layout = Layout::kStrided, rhs_layout = Layout::kStrided, out_layout = Layout::kStrided;
  int64_t block_cols = 64;  // of column blocks
  DType lhs = DType::kF32, rhs = DType::kF32, out = DType::kF32, bias_type = DType::kF32,
        sizes_type = DType::kS32;  // sizes_type: group_offset too
  bool c = false, bias = false, alpha = false, beta = false;
  ParameterRows parameter_rows = ParameterRows::kPerGroup;  // of alpha and beta; bias: per group unless per replica
  std::optional<int64_t> group_offset = std::nullopt;
  std::optional<int64_t> local_groups = std::nullopt;
  std::optional<ArithmeticId> bf16_sums = std::nullopt;
  Precision precision = Precision::kDefault;
  // Factors of quantized operands: {} none, {0} one value, {1} one for each group, {rows, columns} of the blocks of the
  // stored matrix that share one, 0 being all of an axis; {rows, columns, 0} for all groups the same.
  std::vector<int64_t> lhs_scale = {}, rhs_scale = {}, lhs_zero = {}, rhs_zero = {};
  DType scale_type = DType::kF32;
  std::optional<Activation> activation = std::nullopt;
  std::optional<DType> gate = std::nullopt;        // its type
  std::optional<int64_t> lhs_rows = std::nullopt;  // with a row_index: of each problem and replica
  int64_t slack = 0;                               // all ragged: elements of out after the last group
  int64_t gap_elements = 0;                        // distance of each buffer from the unmapped page
  Cliff cliff = Cliff::kBehind;
  bool special_values = false;  // among the others: zeros, ones, infinities, NaN, the smallest of the type
  uint64_t seed = TestSeed();
};
// One group of these types and extents.
ProblemSpec OneGroup(DType lhs, DType rhs, int64_t m, int64_t n, int64_t k);

// Everything needed to make it again, as ParseFields (field_text.h) reads it.
std::string Describe(const ProblemSpec& spec);

// The shape of scales or zeros of matrices of this shape, as ProblemSpec says it; `rows`: of values for each group.
std::vector<int64_t> FactorDims(const Dims& stored, const std::vector<int64_t>& blocks, int64_t rows);

// StoreRounded, but of f32, which most values are, the CPU rounds: that takes a tenth of the time.
void StoreNearest(const Array& array, int64_t index, double value);

// A dense array and the memory it is in.
class Tensor {
 public:
  Tensor(DType dtype, std::vector<int64_t> dims, int64_t gap_elements = 0, Cliff cliff = Cliff::kBehind);
  Array array() const { return {buffer_.data(), dtype_, dims_}; }
  GuardedBuffer& buffer() { return buffer_; }
  const GuardedBuffer& buffer() const { return buffer_; }

 private:
  DType dtype_;
  std::vector<int64_t> dims_;
  GuardedBuffer buffer_;
};

// A problem that owns its buffers. Tests may change `problem`, and add tensors to it.
class TestProblem {
 public:
  // kNone: of floats and quantized operands nothing is written, so that even large ones cost nothing.
  enum class Contents : uint8_t { kRandom, kNone };
  explicit TestProblem(const ProblemSpec& spec, Contents contents = Contents::kRandom);
  TestProblem(TestProblem&&) = default;

  GroupedGemmProblem problem;

  // Values in [-1, 1), rounded, and where the problem has them, special ones.
  Array AddRandom(DType dtype, std::vector<int64_t> dims);
  Array AddFactor(DType dtype, std::vector<int64_t> dims);
  Array AddIntegers(DType dtype, std::vector<int64_t> dims, absl::Span<const int64_t> values);
  // Sets every byte of out to 0xFF: NaN in every type.
  void ClearOut();
  // Makes out a copy of c and c the same memory.
  void AliasOutWithC();
  bool SurroundingsIntact() const;

 private:
  void SetRaggedDims(const ProblemSpec& spec);
  void AddOptionalOperands(const ProblemSpec& spec);
  Array AddRowIndex(const ProblemSpec& spec);

  Random random_;
  Contents contents_;
  int64_t gap_elements_;
  Cliff cliff_;
  bool special_values_;
  std::deque<Tensor> tensors_;  // a deque: arrays point into its elements
};

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_SUPPORT_PROBLEM_SPEC_H_
