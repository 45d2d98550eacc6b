#include "bench/contenders.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

namespace raggemm::bench {
namespace {

using SeriesOfSets = std::shared_ptr<const std::vector<Series>>;

SeriesOfSets AllSeries(const Case& c, const Memory& memory) {
  auto series = std::make_shared<std::vector<Series>>();
  for (int64_t set = 0; set < SetsOf(c); ++set) series->emplace_back(c, memory.SetOf(c, set));
  return series;
}

// Zeroes the gradients of groups without rows, which peers do not compute.
void ZeroEmptyGradients(const Series& series, int threads) {
  for (const Series::Span& span : series.empty_gradients()) ZeroBytes(span.begin, span.bytes, threads);
}

Contender Grouped(const Case& c, const Memory& memory) {
  auto call = std::make_shared<GroupedCall>(c, c.sizes);
  return {.name = "ours",
          .threading = {},
          .run = [&memory, c, call](int64_t set) { return call->Run(memory.SetOf(c, set), {.threads = c.threads}); },
          .sets = SetsOf(c),
          .result = memory.SetOf(c, 0).out};
}

void AddPeers(const Case& c, const Memory& memory, const std::vector<Peer>& peers, std::vector<Contender>& contenders) {
  const SeriesOfSets series = AllSeries(c, memory);
  for (const Peer& peer : peers) {
    if (peer.quantized != (c.quantization != nullptr) || !peer.supports((*series)[0].gemms())) continue;
    for (PeerThreads threading : {PeerThreads::kOwn, PeerThreads::kOuter}) {
      if (threading == PeerThreads::kOuter && (c.threads == 1 || peer.one_call)) continue;
      const auto run = [series, peer, threading, threads = c.threads](int64_t set) {
        ZeroEmptyGradients((*series)[set], threads);
        return peer.run((*series)[set].gemms(), threading, threads);
      };
      contenders.push_back({.name = peer.name,
                            .threading = threading == PeerThreads::kOwn ? "own" : "outer",
                            .run = run,
                            .sets = SetsOf(c),
                            .result = memory.SetOf(c, 0).out});
    }
  }
}

}  // namespace

std::vector<Contender> MakeContenders(const Case& c, const Memory& memory, const std::vector<Peer>& peers) {
  std::vector<Contender> contenders = {Grouped(c, memory)};
  AddPeers(c, memory, peers, contenders);
  return contenders;
}

std::vector<Contender> MakeWidened(const Case& wide_case, const Memory& wide, const std::vector<Peer>& peers) {
  std::vector<Contender> contenders;
  AddPeers(wide_case, wide, peers, contenders);
  return contenders;
}

Contender WithBf16(const Case& c, const Memory& wide) {
  Contender contender = Grouped(Widened(c), wide);
  contender.name = "bf16";
  contender.threading = "ours";
  contender.result = nullptr;
  return contender;
}

Contender WithWidening(const Contender& widened, const Case& c, const Memory& memory, const Memory& wide) {
  Contender counted = widened;
  counted.name = absl::StrCat("widen, ", counted.name);
  counted.run = [narrow = AllSeries(c, memory), wide = AllSeries(Widened(c), wide), multiply = widened.run,
                 threads = c.threads](int64_t set) {
    WidenBf16((*narrow)[set].gemms(), (*wide)[set].gemms(), threads);
    return multiply(set);
  };
  return counted;
}

}  // namespace raggemm::bench
