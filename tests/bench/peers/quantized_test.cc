// The competitor for quantized operands gives what a double loop over the dequantized weights gives.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "bench/peers/peer.h"
#include "kernels/problem.h"
#include "raggemm/element.h"
#include "tests/oracle/values.h"

namespace raggemm::bench {
namespace {

struct Row {
  const char* name;
  DType lhs, rhs, out, rhs_scale;
  int64_t block = 0;  // 0: K
  bool scales_rhs = true, scales_lhs = false;
  bool rounds = false;  // weights times their scales, to bf16
};
constexpr Row kRows[] = {
    {"int8", DType::kBF16, DType::kS8, DType::kF32, DType::kF32},
    {"fp8", DType::kBF16, DType::kF8E4M3FN, DType::kF32, DType::kF32},
    {"int4", DType::kBF16, DType::kS4, DType::kF32, DType::kBF16, 128, true, false, true},
    {"int4, blocks of 64", DType::kBF16, DType::kS4, DType::kF32, DType::kBF16, 64, true, false, true},
    {"mxfp4", DType::kBF16, DType::kF4E2M1FN, DType::kF32, DType::kF8E8M0FNU, 32},
    {"w8a8", DType::kS8, DType::kS8, DType::kF32, DType::kF32, 0, true, true},
    {"integers", DType::kS8, DType::kS8, DType::kS32, DType::kF32, 0, false}};

// One operand of every group, one after the other.
class Operand {
 public:
  Operand(DType dtype, std::vector<int64_t> sizes, double low, double high) : dtype_(dtype), sizes_(std::move(sizes)) {
    std::mt19937 random(1);
    std::uniform_real_distribution<double> values(low, high);
    for (int64_t size : sizes_) {
      std::vector<uint8_t>& memory = memory_.emplace_back(BytesOf(dtype, size));
      for (int64_t i = 0; i < size; ++i) StoreRounded({memory.data(), dtype, {size}}, i, values(random));
    }
    for (std::vector<uint8_t>& memory : memory_) data_.push_back(memory.data());
  }
  double At(size_t group, int64_t i) const { return ToDouble({data_[group], dtype_, {sizes_[group]}}, i); }
  const std::vector<void*>& data() const { return data_; }
  std::vector<const void*> read() const { return {data_.begin(), data_.end()}; }

 private:
  DType dtype_;
  std::vector<int64_t> sizes_;
  std::vector<std::vector<uint8_t>> memory_;
  std::vector<void*> data_;
};

class Problem {
 public:
  Problem(const Row& row, int64_t k, int64_t n, std::vector<int64_t> rows)
      : row_(row), k_(k), n_(n), block_(row.block == 0 ? k : row.block), rows_(std::move(rows)) {}

  // UnimplementedError where the peer has no such product.
  absl::Status RunAndCheck(const Peer& peer, PeerThreads way, int threads) {
    GemmSeries series;
    series.lhs_dtype = row_.lhs;
    series.rhs_dtype = row_.rhs;
    series.out_dtype = row_.out;
    series.k = k_;
    series.n = n_;
    series.rows = rows_;
    const std::vector<const void*> lhs = lhs_.read(), rhs = rhs_.read(), lhs_scale = lhs_scale_.read(),
                                   rhs_scale = rhs_scale_.read();
    series.lhs = lhs;
    series.rhs = rhs;
    series.out = out_.data();
    series.rhs_scale_dtype = row_.rhs_scale;
    if (row_.scales_lhs) series.lhs_scale = lhs_scale;
    if (row_.scales_rhs) series.rhs_scale = rhs_scale;
    if (row_.scales_rhs) series.block = block_;
    if (!peer.supports(series)) return absl::UnimplementedError(row_.name);
    if (absl::Status status = peer.run(series, way, threads); !status.ok()) return status;
    Check();
    return absl::OkStatus();
  }

 private:
  std::vector<int64_t> Sizes(bool by_rows, int64_t of_each) const {
    std::vector<int64_t> sizes;
    for (int64_t m : rows_) sizes.push_back(by_rows ? m * of_each : of_each);
    return sizes;
  }

  void Check() const {
    for (size_t g = 0; g < rows_.size(); ++g) {
      for (int64_t i = 0; i < rows_[g]; ++i) {
        for (int64_t j = 0; j < n_; ++j) CheckElement(g, i, j);
        if (testing::Test::HasFailure()) return;
      }
    }
  }

  void CheckElement(size_t g, int64_t i, int64_t j) const {
    double want = 0, size = 0;
    for (int64_t t = 0; t < k_; ++t) {
      double weight = rhs_.At(g, t * n_ + j);
      if (row_.scales_rhs) weight *= rhs_scale_.At(g, t / block_ * n_ + j);
      if (row_.rounds) weight = RoundTo(DType::kBF16, weight);
      const double product = lhs_.At(g, i * k_ + t) * weight * (row_.scales_lhs ? lhs_scale_.At(g, i) : 1);
      want += product;
      size += std::abs(product);
    }
    const double got = out_.At(g, i * n_ + j);
    const double bound =
        row_.out == DType::kS32 ? 0 : FormatOf(DType::kF32).Epsilon() * static_cast<double>(k_ + 4) * size;
    EXPECT_LE(std::abs(got - want), bound) << "group " << g << " [" << i << ", " << j << "]";
    EXPECT_FALSE(std::isnan(got));
  }

  const Row row_;
  const int64_t k_, n_, block_;
  const std::vector<int64_t> rows_;
  Operand lhs_{row_.lhs, Sizes(true, k_), row_.lhs == DType::kS8 ? -127.0 : -1.0, row_.lhs == DType::kS8 ? 127.0 : 1.0};
  Operand rhs_{row_.rhs, Sizes(false, k_* n_), row_.rhs == DType::kS8 ? -127.0 : -6.0,
               row_.rhs == DType::kS8 ? 127.0 : 6.0};
  Operand lhs_scale_{DType::kF32, Sizes(true, 1), 0.1, 1.0};
  Operand rhs_scale_{row_.rhs_scale, Sizes(false, k_ / block_ * n_), 0.1, 1.0};
  Operand out_{row_.out, Sizes(true, n_), 7.0, 7.0};
};

void CheckEveryWay(const Peer& peer, const Row& row) {
  for (PeerThreads way : {PeerThreads::kOwn, PeerThreads::kOuter}) {
    for (int threads : {2, 1, 2}) {
      SCOPED_TRACE(absl::StrCat(row.name, way == PeerThreads::kOwn ? ", own " : ", outer ", threads, " threads"));
      Problem problem(row, 256, 80, {1, 5, 40, 1});
      const absl::Status status = problem.RunAndCheck(peer, way, threads);
      if (absl::IsUnimplemented(status)) {
        std::printf("NOT covered: competitor %s, %s\n", peer.name, row.name);
        return;
      }
      ASSERT_TRUE(status.ok()) << status;
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(QuantizedPeerTest, GivesRightResults) {
  for (const Peer& peer : LoadPeers()) {
    if (!peer.quantized) continue;
    for (const Row& row : kRows) CheckEveryWay(peer, row);
  }
  for (const AbsentPeer& peer : AbsentPeers()) {
    std::printf("NOT covered: competitor %s, %s\n", peer.name, peer.reason.c_str());
  }
}

TEST(QuantizedPeerTest, LeavesOtherOperandsAlone) {
  for (const Peer& peer : LoadPeers()) {
    if (!peer.quantized) continue;
    for (DType dtype : {DType::kF32, DType::kF64}) {
      GemmSeries series;
      const int64_t rows[] = {3};
      series.lhs_dtype = series.rhs_dtype = dtype;
      series.k = series.n = 64;
      series.rows = rows;
      EXPECT_EQ(peer.supports(series), false);
    }
  }
}

}  // namespace
}  // namespace raggemm::bench
