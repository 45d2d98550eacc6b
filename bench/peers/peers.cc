#include <utility>

#include "absl/status/statusor.h"
#include "bench/peers/libraries.h"
#include "bench/peers/peer.h"

namespace raggemm::bench {
namespace {

struct Source {
  std::vector<const char*> names;
  absl::StatusOr<std::vector<Peer>> (*load)();
};

struct Peers {
  std::vector<Peer> found;
  std::vector<AbsentPeer> absent;
};

// Loads all peers. MKL is last, because libraries that are loaded after MKL would find its cblas_sgemm first.
Peers Load() {
  const Source sources[] = {{{"onednn", "onednn-sgemm"}, LoadOneDnn<2>},
                            {{"onednn3", "onednn3-sgemm", "onednn3-quantized"}, LoadOneDnn<3>},
                            {{"openblas"}, LoadOpenBlas},
                            {{"openblas-wheel", "openblas-wheel-batch"}, LoadOpenBlasWheel},
                            {{"blis"}, LoadBlis},
                            {{"blis-avx2"}, LoadBlisAvx2},
                            {{"mkl", "mkl-batch"}, LoadMkl}};
  Peers peers;
  for (const Source& source : sources) {
    absl::StatusOr<std::vector<Peer>> loaded = source.load();
    if (loaded.ok()) {
      for (Peer& peer : *loaded) peers.found.push_back(std::move(peer));
    } else {
      for (const char* name : source.names) peers.absent.push_back({name, std::string(loaded.status().message())});
    }
  }
  return peers;
}

const Peers& All() {
  static const Peers& peers = *new Peers(Load());
  return peers;
}

}  // namespace

const std::vector<Peer>& LoadPeers() { return All().found; }
const std::vector<AbsentPeer>& AbsentPeers() { return All().absent; }

}  // namespace raggemm::bench
