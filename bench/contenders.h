// Who computes a case: our library and the peers.
#ifndef RAGGEMM_BENCH_CONTENDERS_H_
#define RAGGEMM_BENCH_CONTENDERS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/cases.h"
#include "bench/operands.h"
#include "bench/peers/peer.h"

namespace raggemm::bench {

struct Contender {
  std::string name, way;  // way: how a peer uses its threads
  // Makes one call on a set of operands, below `sets`. Calls on one set after the other find nothing in a cache.
  std::function<absl::Status(int64_t set)> run;
  int64_t sets = 1;
  // out of set 0. Null if `run` computes in other memory, so that the result cannot be compared.
  char* result = nullptr;
};

// Ours is the first. Then come the peers for these types, each in all its ways to use threads.
std::vector<Contender> MakeContenders(const Case& c, const Memory& memory, const std::vector<Peer>& peers);

// Products of 16-bit operands by peers that multiply f32, on operands that were widened before.
// `wide_case` is the case with f32 operands, `wide` memory for it in the precision of the narrow type.
std::vector<Contender> MakeWidened(const Case& wide_case, const Memory& wide, const std::vector<Peer>& peers);

// Makes a peer of our own for quantized operands: the same rows and matrices in bf16, in memory of their own.
Contender WithBf16(const Case& c, const Memory& wide);

// Makes a peer of one of MakeWidened that widens the bf16 operands in each call.
Contender WithWidening(const Contender& widened, const Case& c, const Memory& memory, const Memory& wide);

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_CONTENDERS_H_
