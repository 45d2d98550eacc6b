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

// Returns the seed of all random tests: RAGGEMM_TEST_SEED, or a fixed number if it is not set.
uint64_t TestSeed();

// Returns true for one in `one_in` calls on average, chosen by TestSeed(). If RAGGEMM_FULL_TESTS is set, always returns
// true, which completes loops over exhaustive grids.
bool Sampled(int64_t one_in);

// SplitMix64, which is fast and gives the same numbers everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  int64_t Below(int64_t limit) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(limit)); }
  bool Coin() { return Below(2) == 1; }
  // Returns a number in [-1, 1).
  double Unit() { return static_cast<double>(static_cast<int64_t>(Next())) * 0x1p-63; }
  // Returns non-negative group sizes, some of them zero. Their sum is at most `total`, and often equal.
  std::vector<int64_t> Sizes(int64_t groups, int64_t total);

 private:
  uint64_t state_;
};

enum class ParameterRows : uint8_t { kScalar, kPerGroup, kPerReplica };

// A problem in numbers. Extents that its mode lacks are ignored.
struct ProblemSpec {
  RaggedMode mode = RaggedMode::kRaggedM;
  int64_t problems = 1, replicas = 1, groups = 1;
  // Extents of each problem and replica. A ragged axis may exceed the sum of its sizes. Unused in all-ragged mode.
  int64_t m = 1, n = 1, k = 1;
  std::vector<int64_t> sizes = {};  // [problems, replicas, groups] along the ragged axis. All-ragged: along M.
  std::vector<int64_t> n_sizes = {}, k_sizes = {};  // All-ragged mode only.
  // True if the stored axes are swapped: [K,M] for lhs of ragged M, [M,K] for lhs of ragged K, [N,K] for rhs, and so
  // on.
  bool lhs_flipped = false, rhs_flipped = false;
  bool lhs_grouped = false;  // Ragged N: lhs is [G,M,K] instead of [M,K].
  Layout lhs_layout = Layout::kStrided, rhs_layout = Layout::kStrided, out_layout = Layout::kStrided;
  int64_t block_cols = 64;  // Columns of a column block.
  DType lhs = DType::kF32, rhs = DType::kF32, out = DType::kF32, bias_type = DType::kF32,
        sizes_type = DType::kS32;  // Type of group sizes and group_offset.
  bool c = false, bias = false, alpha = false, beta = false;
  // Rows of alpha and beta. bias has one row per group, unless this is kPerReplica.
  ParameterRows parameter_rows = ParameterRows::kPerGroup;
  std::optional<int64_t> group_offset = std::nullopt;
  std::optional<int64_t> local_groups = std::nullopt;
  std::optional<ArithmeticId> bf16_sums = std::nullopt;
  Precision precision = Precision::kDefault;
  // Scales and zero points of quantized operands:
  //
  //   {}                   none
  //   {0}                  one value
  //   {1}                  one value for each group
  //   {rows, columns}      one value for each block of the stored matrix. 0: the whole axis.
  //   {rows, columns, 0}   the same values for all groups
  std::vector<int64_t> lhs_scale = {}, rhs_scale = {}, lhs_zero = {}, rhs_zero = {};
  DType scale_type = DType::kF32;
  std::optional<Activation> activation = std::nullopt;
  std::optional<DType> gate = std::nullopt;
  std::optional<int64_t> lhs_rows = std::nullopt;  // Rows of each problem and replica, if there is a row_index.
  int64_t slack = 0;                               // All-ragged: elements of out after the last group.
  int64_t gap_elements = 0;                        // Distance of each buffer from the unmapped page.
  Cliff cliff = Cliff::kBehind;
  bool special_values = false;  // True: some elements are 0, 1, infinity, NaN or the smallest of the type.
  uint64_t seed = TestSeed();
};
ProblemSpec OneGroup(DType lhs, DType rhs, int64_t m, int64_t n, int64_t k);

// Returns a text that ParseFields (field_text.h) turns back into the spec.
std::string Describe(const ProblemSpec& spec);

// Returns the shape of an operand's scales or zero points. `stored` is the operand's shape. `blocks` is a field of
// ProblemSpec. `rows` is the number of values if they are per group.
std::vector<int64_t> QuantParamsDims(const Dims& stored, const std::vector<int64_t>& blocks, int64_t rows);

// Does the same as StoreRounded. Lets the CPU round f32, the most frequent type, which takes a tenth of the time.
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
  // kNone: floats and quantized operands are not written, so even large ones cost nothing.
  enum class Contents : uint8_t { kRandom, kNone };
  explicit TestProblem(const ProblemSpec& spec, Contents contents = Contents::kRandom);
  TestProblem(TestProblem&&) = default;

  GroupedGemmProblem problem;

  // Adds an array of rounded values in [-1, 1), some of them special if the problem has special values.
  Array AddRandom(DType dtype, std::vector<int64_t> dims);
  Array AddQuantParams(DType dtype, std::vector<int64_t> dims);
  Array AddIntegers(DType dtype, std::vector<int64_t> dims, absl::Span<const int64_t> values);
  // Sets every byte of out to 0xFF, a NaN in every float type.
  void ClearOut();
  // Copies c to out, and then makes both the same memory.
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
  std::deque<Tensor> tensors_;  // A deque, because arrays point into its elements.
};

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_SUPPORT_PROBLEM_SPEC_H_
