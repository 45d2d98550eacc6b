// Tests operands with elements beyond index 2^31 and byte 2^32. Linux provides memory only for accessed pages.
#include <sys/mman.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/ffi/plugin_call.h"
#include "tests/oracle/values.h"

namespace raggemm::test {
namespace {

constexpr int64_t kTwoTo31 = int64_t{1} << 31;
constexpr DType kType = DType::kBF16;  // An element has two bytes, so kTwoTo31 elements have 2^32 bytes.

// An array of zeros in virtual memory.
class Sparse {
 public:
  explicit Sparse(std::vector<int64_t> dims) : dims_(std::move(dims)) {
    for (int64_t d : dims_) bytes_ *= static_cast<size_t>(d);
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) std::abort();
  }
  ~Sparse() { munmap(data_, bytes_); }
  Sparse(const Sparse&) = delete;
  Sparse& operator=(const Sparse&) = delete;
  Array array() const { return {data_, kType, dims_}; }

 private:
  std::vector<int64_t> dims_;
  size_t bytes_ = SizeOf(kType);
  void* data_;
};

struct MatrixLayout {
  int64_t start, row_step, col_step;
  int64_t At(int64_t row, int64_t col) const { return start + row * row_step + col * col_step; }
};

// Extents and layouts of the product of one group: out += lhs x rhs, with out m x n, lhs m x k and rhs k x n.
struct Product {
  int64_t m, n, k;
  MatrixLayout lhs, rhs, out;
};

// Returns the value of the element with this index: a small integer, so that every sum is exact.
double ValueAt(int64_t index) { return static_cast<double>((index * 40503 >> 7) % 5 - 2); }

void Fill(const Array& array, const MatrixLayout& matrix, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) StoreRounded(array, matrix.At(i, j), ValueAt(matrix.At(i, j)));
  }
}

class LargeProblem {
 public:
  LargeProblem(std::vector<int64_t> lhs, std::vector<int64_t> rhs, std::vector<int64_t> out) {
    for (auto [operand, dims] : {std::pair{&problem.lhs, &lhs}, {&problem.rhs, &rhs}, {&problem.out, &out}}) {
      static_cast<Array&>(*operand) = matrices_.emplace_back(*dims).array();
    }
    problem.c = static_cast<const Array&>(problem.out);
  }

  GroupedGemmProblem problem;

  Array Sizes(std::vector<int64_t> dims, std::vector<int32_t> values) {
    const auto& [kept_dims, kept] = sizes_.emplace_back(std::move(dims), std::move(values));
    return {const_cast<int32_t*>(kept.data()), DType::kS32, kept_dims};
  }

  void RunAndCheck(const std::vector<Product>& products) {
    for (const Product& p : products) {
      Fill(problem.lhs, p.lhs, p.m, p.k);
      Fill(problem.rhs, p.rhs, p.k, p.n);
      Fill(problem.out, p.out, p.m, p.n);
    }
    std::vector<int64_t> workspace(host::WorkspaceElements(problem, ThePlugin().workspace_coefficients));
    host::Call call = host::MakeCall(problem, absl::MakeSpan(workspace));
    ASSERT_EQ(host::Execute(ThePlugin().execute, call, &pool_).message, "");
    for (const Product& p : products) ExpectRight(p);
  }

 private:
  void ExpectRight(const Product& p) const {
    for (int64_t i = 0; i < p.m; ++i) {
      for (int64_t j = 0; j < p.n; ++j) {
        double want = ValueAt(p.out.At(i, j));
        for (int64_t k = 0; k < p.k; ++k) want += ValueAt(p.lhs.At(i, k)) * ValueAt(p.rhs.At(k, j));
        ASSERT_EQ(ToDouble(problem.out, p.out.At(i, j)), want) << "row " << i << ", column " << j;
      }
    }
  }

  std::deque<Sparse> matrices_;
  std::deque<std::pair<std::vector<int64_t>, std::vector<int32_t>>> sizes_;
  host::ThreadPool pool_{2};
};

TEST(LargeExtents, WeightsOfManyGroups) {
  constexpr int64_t kGroups = 4104, kK = 512, kN = 1024;
  LargeProblem large({8, kK}, {kGroups, kK, kN}, {8, kN});
  std::vector<int32_t> sizes(kGroups);
  sizes[5] = 3;
  sizes[kGroups - 1] = 5;
  large.problem.lhs.first_dims = large.problem.out.first_dims = large.Sizes({kGroups}, sizes);
  // Only 4 of 512 steps of k and 40 of 1024 columns are filled. All other elements of lhs and rhs are zero.
  large.RunAndCheck({{3, 40, 4, {0, kK, 1}, {5 * kK * kN, kN, 1}, {0, kN, 1}},
                     {5, 40, 4, {3 * kK, kK, 1}, {(kGroups - 1) * kK * kN, kN, 1}, {3 * kN, kN, 1}}});
}

TEST(LargeExtents, RowsOfTheSecondProblem) {
  constexpr int64_t kM = (1 << 21) + 1, kN = 1024, kK = 3;
  LargeProblem large({2 * kM, kK}, {4, kK, kN}, {2 * kM, kN});
  large.problem.lhs.first_dims = large.problem.out.first_dims = large.Sizes({2, 1, 2}, {1, 2, 0, 7});
  large.RunAndCheck({{1, kN, kK, {0, kK, 1}, {0, kN, 1}, {0, kN, 1}},
                     {2, kN, kK, {kK, kK, 1}, {kK * kN, kN, 1}, {kN, kN, 1}},
                     {7, kN, kK, {kM * kK, kK, 1}, {3 * kK * kN, kN, 1}, {kM * kN, kN, 1}}});
}

TEST(LargeExtents, RowsOfARaggedContraction) {
  constexpr int64_t kRows = (1 << 25) + 3, kM = 64, kN = 70;
  LargeProblem large({2 * kRows, kM}, {2 * kRows, kN}, {4, kM, kN});
  large.problem.lhs.is_trans = true;
  large.problem.lhs.first_dims = large.problem.rhs.first_dims = large.Sizes({2, 1, 2}, {0, 2, 3, 4});
  constexpr int64_t kSecond = kRows + 3;
  large.RunAndCheck({{kM, kN, 2, {0, 1, kM}, {0, kN, 1}, {kM * kN, kN, 1}},
                     {kM, kN, 3, {kRows * kM, 1, kM}, {kRows * kN, kN, 1}, {2 * kM * kN, kN, 1}},
                     {kM, kN, 4, {kSecond * kM, 1, kM}, {kSecond * kN, kN, 1}, {3 * kM * kN, kN, 1}}});
}

TEST(LargeExtents, LongRows) {
  constexpr int64_t kN = kTwoTo31 + 64, kM = 2, kK = 3;
  LargeProblem large({kM, kK}, {kK, kN}, {kM, kN});
  large.problem.rhs.last_dims = large.problem.out.last_dims = large.Sizes({2}, {5, 70});
  large.RunAndCheck(
      {{kM, 5, kK, {0, kK, 1}, {0, kN, 1}, {0, kN, 1}}, {kM, 70, kK, {0, kK, 1}, {5, kN, 1}, {5, kN, 1}}});
}

TEST(LargeExtents, PackedGroupsOfTheSecondProblem) {
  constexpr int64_t kLength = kTwoTo31 + 10;
  LargeProblem large({2 * kLength}, {2 * kLength}, {2 * kLength});
  GroupedGemmProblem& problem = large.problem;
  problem.lhs.layout = problem.rhs.layout = problem.out.layout = Layout::kPacked;
  problem.lhs.first_dims = problem.out.first_dims = large.Sizes({2, 1, 2}, {2, 3, 4, 5});
  problem.lhs.last_dims = problem.rhs.first_dims = large.Sizes({2, 1, 2}, {1, 2, 3, 2});
  problem.rhs.last_dims = problem.out.last_dims = large.Sizes({2, 1, 2}, {6, 7, 8, 9});
  large.RunAndCheck({{2, 6, 1, {0, 1, 1}, {0, 6, 1}, {0, 6, 1}},
                     {4, 8, 3, {kLength, 3, 1}, {kLength, 8, 1}, {kLength, 8, 1}},
                     {5, 9, 2, {kLength + 12, 2, 1}, {kLength + 24, 9, 1}, {kLength + 32, 9, 1}}});
}

}  // namespace
}  // namespace raggemm::test
