#include "bench/limits.h"

#include <utility>

#include "bench/peak.h"
#include "bench/team.h"
#include "raggemm/plan.h"

namespace raggemm::bench {
namespace {

Limits QuantileOf(const std::vector<Limits>& samples, double share) {
  const auto quantile = [&](double Limits::*limit) {
    std::vector<double> values;
    for (const Limits& sample : samples) values.push_back(sample.*limit);
    return Quantile(std::move(values), share);
  };
  return {quantile(&Limits::fma_gflops), quantile(&Limits::read_gbps), quantile(&Limits::store_gbps)};
}

}  // namespace

LimitsMeter::LimitsMeter() : bandwidth_(HostCpu().widest) {}

Limits LimitsMeter::Measure(int threads) {
  return {FmaPeakGflops(HostCpu().widest, threads), bandwidth_.ReadGbps(threads), bandwidth_.StoreGbps(threads)};
}

Limits UpperQuartileOf(const std::vector<Limits>& samples) { return QuantileOf(samples, 0.75); }
Limits MedianOf(const std::vector<Limits>& samples) { return QuantileOf(samples, 0.5); }

}  // namespace raggemm::bench
