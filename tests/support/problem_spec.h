// Makes problems from a few numbers (ProblemSpec), with random data in guarded buffers.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "raggemm/grouped_gemm.h"
#include "tests/support/guarded_buffer.h"

namespace raggemm::test {

// Returns the seed of random tests: the environment variable RAGGEMM_TEST_SEED, or a fixed number if it is not set. A
// few tests of the expert MLP use other seeds, and print them.
uint64_t TestSeed();

// Returns true for one of `one_in` calls on average, so that a loop over many cases tests a random sample. TestSeed()
// determines the sample. Programs with software units test half as many cases. Always returns true if the environment
// variable RAGGEMM_FULL_TESTS is set.
bool Sampled(int64_t one_in);

// A fast random number generator (SplitMix64) that gives the same numbers on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  int64_t Below(int64_t limit) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(limit)); }
  bool Coin() { return Below(2) == 1; }
  // Returns a random number in [-1, 1].
  double Unit() { return static_cast<double>(static_cast<int64_t>(Next())) * 0x1p-63; }
  // Returns random sizes, some of them zero. Their sum is at most `total`, and sometimes equal.
  std::vector<int64_t> Sizes(int64_t groups, int64_t total);

 private:
  uint64_t state_;
};

enum class ParameterRows : uint8_t { kScalar, kPerGroup, kPerReplica };

// A description of a problem, from which TestProblem makes the operands. Ignores fields that do not apply to the mode.
struct ProblemSpec {
  RaggedMode mode = RaggedMode::kRaggedM;
  int64_t problems = 1, replicas = 1, groups = 1;
  // Extents of each replica. The extent of the ragged axis may exceed the sum of the group sizes. The mode all ragged
  // does not use m, n and k.
  int64_t m = 1, n = 1, k = 1;
  std::vector<int64_t> sizes = {};  // Group sizes, [problems, replicas, groups]. With all ragged: sizes along M.
  std::vector<int64_t> n_sizes = {}, k_sizes = {};  // Group sizes along N and K, for all ragged only.
  // True if the operand is stored with swapped axes: lhs as [K,M] (with ragged K as [M,K]), rhs as [N,K].
  bool lhs_flipped = false, rhs_flipped = false;
  bool lhs_grouped = false;  // Ragged N only. True: lhs is [G,M,K], a matrix for each group. False: [M,K].
  Layout lhs_layout = Layout::kStrided, rhs_layout = Layout::kStrided, out_layout = Layout::kStrided;
  int64_t block_cols = 64;  // Columns of a block if rhs_layout is kColumnBlocks. kWordBlocks have 32.
  DType lhs = DType::kF32, rhs = DType::kF32, out = DType::kF32, bias_type = DType::kF32,
        sizes_type = DType::kS32;  // Type of group sizes, group_offset and row_index.
  bool c = false, bias = false, alpha = false, beta = false;
  // Rows of alpha, beta and bias: one per processed group (kPerGroup), or one per processed group of each replica
  // (kPerReplica). With kScalar, alpha and beta have one value, and bias is per processed group.
  ParameterRows parameter_rows = ParameterRows::kPerGroup;
  std::optional<int64_t> group_offset = std::nullopt;
  std::optional<int64_t> local_groups = std::nullopt;
  std::optional<ArithmeticId> bf16_sums = std::nullopt;
  Precision precision = Precision::kDefault;
  // GroupedGemmProblem::lhs_block. If set, lhs has runs of 16 elements with different magnitudes, and runs of zeros.
  // With special_values, some runs have denormals, large numbers, infinities, NaN, or numbers between two codes.
  std::optional<int64_t> lhs_block = std::nullopt;
  // Scales and zero points of quantized operands:
  //
  //   {}                   none
  //   {0}                  one value for the operand
  //   {1}                  one value for each processed group. If parameter_rows is kPerReplica, one value for
  //                        each group of each replica
  //   {rows, columns}      one value for each block of this many rows and columns of the stored matrix. 0: the block
  //                        has the whole axis
  //   {rows, columns, 0}   the same, but all groups share the values of one matrix
  std::vector<int64_t> lhs_scale = {}, rhs_scale = {}, lhs_zero = {}, rhs_zero = {};
  DType scale_type = DType::kF32;
  std::optional<Activation> activation = std::nullopt;
  std::optional<float> activation_alpha = std::nullopt, activation_limit = std::nullopt;
  std::optional<DType> gate = std::nullopt;
  // Stored rows of lhs in each replica. A row_index selects from them. Unset: no row_index.
  std::optional<int64_t> lhs_rows = std::nullopt;
  int64_t slack = 0;         // Elements of out after the last group, for all ragged only.
  int64_t gap_elements = 0;  // Elements between each buffer and its unmapped page.
  Cliff cliff = Cliff::kBehind;
  // True: about an eighth of the elements are special values, such as zeros, infinities, NaN, tiny numbers, and limits
  // of integers.
  bool special_values = false;
  uint64_t seed = TestSeed();
};
// Sets the numbers of a ProblemSpec or MlpSpec that the activation takes.
template <typename Spec>
void SetNumbers(Activation activation, const ActivationNumbers& numbers, Spec& spec) {
  const ActivationNumbers& defaults = kDefaultNumbers[static_cast<int>(activation)];
  if (defaults.alpha != 0) spec.activation_alpha = numbers.alpha;
  if (defaults.limit != 0) spec.activation_limit = numbers.limit;
}
ProblemSpec OneGroup(DType lhs, DType rhs, int64_t m, int64_t n, int64_t k);

// Returns a text that ParseFields (field_text.h) turns back into the spec.
std::string Describe(const ProblemSpec& spec);

// Returns the shape of scales or zero points. `stored` is the shape of the operand. `blocks` has the form of
// ProblemSpec::lhs_scale. {1} gives `rows` values.
std::vector<int64_t> QuantParamsDims(const Dims& stored, const std::vector<int64_t>& blocks, int64_t rows);

// Rounds a value to the array's type and stores it. f32, the most frequent type, is rounded by the CPU. This is 10
// times as fast as StoreRounded of tests/oracle.
void StoreNearest(const Array& array, int64_t index, double value);

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

// A problem that owns its buffers. Tests may change `problem` and add tensors.
class TestProblem {
 public:
  // kNone: fills only group sizes and indices. Does not write the memory of other operands, so that large ones cost no
  // time.
  enum class Contents : uint8_t { kRandom, kNone };
  explicit TestProblem(const ProblemSpec& spec, Contents contents = Contents::kRandom);
  TestProblem(TestProblem&&) = default;

  GroupedGemmProblem problem;

  // Adds an array of random values: in [-1, 1] for floats, in [-8, 8] for quantized floats, and any value for integers.
  Array AddRandom(DType dtype, std::vector<int64_t> dims);
  // Adds random zero points if dtype is a quantized integer, otherwise random scales.
  Array AddQuantParams(DType dtype, std::vector<int64_t> dims);
  Array AddIntegers(DType dtype, std::vector<int64_t> dims, absl::Span<const int64_t> values);
  // Sets every byte of out to 0xFF, a NaN in every float type.
  void ClearOut();
  // Copies c to out, and makes c point to out.
  void AliasOutWithC();
  bool SurroundingsIntact() const;

 private:
  void SetRaggedDims(const ProblemSpec& spec);
  void AddOptionalOperands(const ProblemSpec& spec);
  Array AddRowIndex(const ProblemSpec& spec);
  void FillRunsOfLhs();

  Random random_;
  Contents contents_;
  int64_t gap_elements_;
  Cliff cliff_;
  bool special_values_;
  std::deque<Tensor> tensors_;  // Memory of the operands, to which arrays point. A deque never moves its elements.
};

}  // namespace raggemm::test
