#include "bench/limits.h"

#include "bench/peak.h"
#include "bench/team.h"
#include "raggemm/plan.h"

namespace raggemm::bench {
namespace {

double MedianOf(const std::vector<Limits>& samples, double Limits::*limit) {
  std::vector<double> values;
  for (const Limits& sample : samples) values.push_back(sample.*limit);
  return Median(values);
}

}  // namespace

LimitsMeter::LimitsMeter() : bandwidth_(HostCpu().widest) {}

Limits LimitsMeter::Measure(int threads) {
  return {FmaPeakGflops(HostCpu().widest, threads), bandwidth_.ReadGbps(threads), bandwidth_.StoreGbps(threads)};
}

Limits MedianOf(const std::vector<Limits>& samples) {
  return {MedianOf(samples, &Limits::fma_gflops), MedianOf(samples, &Limits::read_gbps),
          MedianOf(samples, &Limits::store_gbps)};
}

}  // namespace raggemm::bench
