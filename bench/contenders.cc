#include "bench/contenders.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/grouped_call.h"
#include "kernels/problem.h"

namespace raggemm::bench {
namespace {

using SeriesOfSets = std::shared_ptr<const std::vector<Series>>;

SeriesOfSets AllSeries(const Case& c, const Memory& memory) {
  auto series = std::make_shared<std::vector<Series>>();
  for (int64_t set = 0; set < SetsOf(c); ++set) series->emplace_back(c, memory.SetOf(c, set));
  return series;
}

// Whoever knows only products leaves the gradients of empty groups to somebody else.
void ZeroEmptyGradients(const Series& series, int threads) {
  for (const Series::Span& span : series.empty_gradients()) ZeroBytes(span.begin, span.bytes, threads);
}

Contender Grouped(const Case& c, const Memory& memory, const std::vector<int64_t>& sizes, const Cpu& cpu = HostCpu()) {
  auto call = std::make_shared<GroupedCall>(c, sizes);
  return {.role = Contender::Role::kBound,
          .name = {},
          .way = {},
          .run = [&memory, c, call,
                  cpu](int64_t place) { return call->Run(memory.SetOf(c, place), {.threads = c.threads, .cpu = cpu}); },
          .places = SetsOf(c),
          .groups = static_cast<int64_t>(c.sizes.size())};
}

// The weights of one group, rows and out of the set that it belongs to.
Contender OneDenseProduct(const Case& c, const Memory& memory) {
  const auto groups = static_cast<int64_t>(c.sizes.size());
  auto call = std::make_shared<GroupedCall>(c, std::vector<int64_t>{c.rows()});
  const auto run = [&memory, c, call, groups](int64_t place) {
    Operands at = memory.SetOf(c, place / groups);
    const int64_t elements = place % groups * c.k * c.n;
    (c.mode == Mode::kWgrad ? at.out : at.rhs) += elements * SizeOf(c.mode == Mode::kWgrad ? c.out : c.in);
    return call->Run(at, {.threads = c.threads});
  };
  return {.role = Contender::Role::kBound,
          .name = "ours, one dense product",
          .way = {},
          .run = run,
          .places = SetsOf(c) * groups,
          .groups = 1};
}

Contender OneByOne(const Case& c, const Memory& memory, const SeriesOfSets& series) {
  auto calls = std::make_shared<std::vector<std::unique_ptr<GroupedCall>>>();
  for (int64_t size : c.sizes) {
    if (size != 0) calls->push_back(std::make_unique<GroupedCall>(c, std::vector<int64_t>{size}));
  }
  const auto run = [series, calls, threads = c.threads](int64_t set) {
    ZeroEmptyGradients((*series)[set], threads);
    const GemmSeries gemms = (*series)[set].gemms();
    absl::Status status;
    for (size_t i = 0; i < calls->size(); ++i) {
      // Operands are pointers for all uses; a call only reads lhs and rhs.
      const Operands at = {static_cast<char*>(const_cast<void*>(gemms.lhs[i])),
                           static_cast<char*>(const_cast<void*>(gemms.rhs[i])), static_cast<char*>(gemms.out[i])};
      status.Update((*calls)[i]->Run(at, {.threads = threads}));
    }
    return status;
  };
  return {.role = Contender::Role::kBound,
          .name = "ours, group by group",
          .way = {},
          .run = run,
          .places = SetsOf(c),
          .groups = static_cast<int64_t>(c.sizes.size()),
          .result = memory.SetOf(c, 0).out};
}

// A few groups of mean size, over and over. Not of wgrad, whose gradients go past the caches.
Contender WithWeightsInCache(const Case& c, const Memory& memory) {
  // A quarter of the last cache, which others may share; where it is not known, that of a desktop.
  const int64_t bytes = std::max(int64_t{24} << 20, int64_t{sysconf(_SC_LEVEL3_CACHE_SIZE)} / 4);
  const int64_t fit = bytes / (c.k * c.n * SizeOf(c.in)) / c.threads * c.threads;
  const int64_t groups = std::clamp<int64_t>(fit, 1, c.active_groups());
  const int64_t rows = std::max<int64_t>(c.rows() / c.active_groups(), 1);
  auto call = std::make_shared<GroupedCall>(c, std::vector<int64_t>(groups, rows));
  return {.role = Contender::Role::kBound,
          .name = "ours, weights in cache",
          .way = {},
          .run = [&memory, c, call](int64_t) { return call->Run(memory.SetOf(c, 0), {.threads = c.threads}); },
          .places = 1,
          .groups = static_cast<int64_t>(c.sizes.size()),
          .flops = static_cast<double>(groups * rows) / static_cast<double>(c.rows()),
          .warm = true};
}

// The same rows over as many groups, the first of them one row larger where it does not divide.
std::vector<int64_t> EqualSizes(const Case& c) {
  const int64_t groups = c.active_groups(), rows = c.rows();
  std::vector<int64_t> sizes(c.sizes.size(), 0);
  for (int64_t g = 0; g < groups; ++g) sizes[g] = rows / groups + (g < rows % groups ? 1 : 0);
  return sizes;
}

void AddPeers(const Case& c, const Memory& memory, const std::vector<Peer>& peers, std::vector<Contender>& contenders) {
  const SeriesOfSets series = AllSeries(c, memory);
  for (const Peer& peer : peers) {
    if (peer.quantized != (c.quantization != nullptr) || !peer.supports((*series)[0].gemms())) continue;
    for (PeerThreads way : {PeerThreads::kOwn, PeerThreads::kOuter}) {
      if (way == PeerThreads::kOuter && (c.threads == 1 || peer.one_call)) continue;
      const auto run = [series, peer, way, threads = c.threads](int64_t set) {
        ZeroEmptyGradients((*series)[set], threads);
        return peer.run((*series)[set].gemms(), way, threads);
      };
      contenders.push_back({.role = Contender::Role::kPeer,
                            .name = peer.name,
                            .way = way == PeerThreads::kOwn ? "own" : "outer",
                            .run = run,
                            .places = SetsOf(c),
                            .groups = static_cast<int64_t>(c.sizes.size()),
                            .result = memory.SetOf(c, 0).out});
    }
  }
}

}  // namespace

std::vector<Contender> MakeContenders(const Case& c, const Memory& memory, const std::vector<Peer>& peers) {
  std::vector<Contender> contenders;
  contenders.push_back(Ours(c, memory));
  if (c.quantization != nullptr) {
    AddPeers(c, memory, peers, contenders);
    return contenders;
  }
  contenders.push_back(OneByOne(c, memory, AllSeries(c, memory)));
  contenders.push_back(OneDenseProduct(c, memory));
  if (const std::vector<int64_t> equal = EqualSizes(c); equal != c.sizes) {
    contenders.push_back(Grouped(c, memory, equal));
    contenders.back().name = "ours, equal groups";
  }
  if (c.threads > 1) {
    Case alone = c;
    alone.threads = 1;
    contenders.push_back(Grouped(alone, memory, c.sizes));
    contenders.back().name = "ours, one thread";
  }
  if (c.mode != Mode::kWgrad) contenders.push_back(WithWeightsInCache(c, memory));
  AddPeers(c, memory, peers, contenders);
  return contenders;
}

std::vector<Contender> MakeWidened(const Case& wide_case, const Memory& wide, const std::vector<Peer>& peers) {
  std::vector<Contender> contenders;
  AddPeers(wide_case, wide, peers, contenders);
  for (Contender& contender : contenders) {
    contender.role = Contender::Role::kBound;
    contender.name = absl::StrCat("widened before, ", contender.name);
  }
  return contenders;
}

Contender Ours(const Case& c, const Memory& memory) {
  Contender contender = OursOn(HostCpu(), c, memory);
  contender.role = Contender::Role::kOurs;
  contender.name = "ours";
  contender.way = {};
  return contender;
}

Contender OursOn(const Cpu& cpu, const Case& c, const Memory& memory) {
  Contender contender = Grouped(c, memory, c.sizes, cpu);
  contender.role = Contender::Role::kPeer;
  contender.name = cpu.name;
  contender.way = "ours";
  contender.result = memory.SetOf(c, 0).out;
  return contender;
}

Contender WithBf16(const Case& c, const Memory& wide) {
  Contender contender = Grouped(Widened(c), wide, c.sizes);
  contender.role = Contender::Role::kPeer;
  contender.name = "bf16";
  contender.way = "ours";
  return contender;
}

Contender WithWidening(const Contender& widened, const Case& c, const Memory& memory, const Memory& wide) {
  Contender counted = widened;
  counted.role = Contender::Role::kPeer;
  counted.name = absl::StrCat("widen, ", counted.name.substr(counted.name.find(", ") + 2));
  counted.run = [narrow = AllSeries(c, memory), wide = AllSeries(Widened(c), wide), multiply = widened.run,
                 threads = c.threads](int64_t set) {
    WidenBf16((*narrow)[set].gemms(), (*wide)[set].gemms(), threads);
    return multiply(set);
  };
  return counted;
}

}  // namespace raggemm::bench
