// raggemm_bench_peers: which competitors are there, and do they use the kernels they should? A dense product of 2048^3
// beside the rate of the fastest unit that the CPU has for the types: a library with the kernels of an older CPU stays
// below half.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "bench/peers/peer.h"
#include "bench/units.h"

namespace raggemm::bench {
namespace {

constexpr int64_t kSize = 2048;
constexpr int kRounds = 5;
constexpr int kThreads[] = {1, 2};

struct Type {
  const char* name;
  DType dtype;
  std::vector<uint16_t> ones;  // as many bytes as kSize^2 elements take
};

std::vector<Type> Types() {
  constexpr size_t kCount = kSize * kSize;
  std::vector<uint16_t> f32(2 * kCount);
  for (size_t i = 1; i < f32.size(); i += 2) f32[i] = 0x3F80;
  return {{"f32", DType::kF32, std::move(f32)},
          {"bf16", DType::kBF16, std::vector<uint16_t>(kCount, 0x3F80)},
          {"f16", DType::kF16, std::vector<uint16_t>(kCount, 0x3C00)}};
}

double LargestPeak(DType dtype, int threads) {
  double peak = 0;
  for (int round = 0; round < kRounds; ++round) peak = std::max(peak, PeakGflops(dtype, threads));
  return peak;
}

// The best of the rounds, in GFLOP/s.
absl::Status MeasureDense(const Peer& peer, const GemmSeries& series, int threads, double& rate) {
  absl::Status status = peer.run(series, PeerThreads::kOwn, threads);
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    status.Update(peer.run(series, PeerThreads::kOwn, threads));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    rate = std::max(rate, 2e-9 * kSize * kSize * kSize / seconds.count());
  }
  return status;
}

// One line for a peer and a type; peaks by threads. False where a result is wrong.
bool PrintDense(const Peer& peer, const Type& type, const std::map<int, double>& peaks, std::vector<float>& out) {
  const int64_t rows[] = {kSize};
  const void* const ones[] = {type.ones.data()};
  void* const outs[] = {out.data()};
  GemmSeries series;
  series.lhs_dtype = series.rhs_dtype = type.dtype;
  series.k = series.n = kSize;
  series.rows = rows;
  series.lhs = series.rhs = ones;
  series.out = outs;
  if (!peer.supports(series)) return true;
  bool right = true;
  absl::PrintF("%-21s %-4s", peer.name, type.name);
  for (const auto& [threads, peak] : peaks) {
    double rate = 0;
    absl::Status status = MeasureDense(peer, series, threads, rate);
    if (out.back() != kSize) status.Update(absl::InternalError("wrong result"));
    right &= status.ok();
    absl::PrintF("  %d threads: %6.1f of %6.1f (%3.0f %%)", threads, rate, peak, 100 * rate / peak);
    if (!status.ok()) absl::PrintF(" %s", status.ToString());
  }
  absl::PrintF("\n");
  return right;
}

int Main() {
  // First of all: later the libraries' threads spin for a while after each call.
  const std::vector<Type> types = Types();
  std::map<DType, std::map<int, double>> peaks;
  for (const Type& type : types) {
    for (int threads : kThreads) peaks[type.dtype][threads] = LargestPeak(type.dtype, threads);
  }
  for (const AbsentPeer& peer : AbsentPeers()) absl::PrintF("%-21s absent: %s\n", peer.name, peer.reason);
  for (const Peer& peer : LoadPeers()) absl::PrintF("%-21s %s\n", peer.name, peer.describe());
  std::vector<float> out(kSize * kSize);
  bool right = true;
  absl::PrintF("\ndense product of %d^3, GFLOP/s, and its share of the fastest unit's peak\n", kSize);
  for (const Type& type : types) {
    for (const Peer& peer : LoadPeers()) right &= PrintDense(peer, type, peaks[type.dtype], out);
  }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace raggemm::bench

int main() { return raggemm::bench::Main(); }
