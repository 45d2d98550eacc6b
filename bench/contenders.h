// Who computes a case: our library, the peers, and what bounds both.
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
#include "raggemm/cpu.h"

namespace raggemm::bench {

struct Contender {
  // kBound does less or other work than the case asks for, or does it in a way nobody would.
  enum class Role : uint8_t { kOurs, kPeer, kBound };
  Role role;
  std::string name, way;  // way: of a peer
  // One call. All sets of operands hold places * groups groups (with and without rows), and the call at a place takes
  // that many of them from there on. So all move through memory alike, and nobody finds what another left in a cache.
  std::function<absl::Status(int64_t place)> run;
  int64_t places = 0, groups = 0;
  double flops = 1;        // of a call, as a share of the case's
  bool warm = false;       // called once more before the clock starts
  char* result = nullptr;  // out at place 0 where that is the result of the case, else null
};

// Ours is the first; of quantized operands then only the peers for these. Else our library called group by group, one
// dense product with all rows, groups of equal size (where the case's are not), on one thread, with weights that stay
// in the last cache, and every peer that can, in each of its ways.
std::vector<Contender> MakeContenders(const Case& c, const Memory& memory, const std::vector<Peer>& peers);

// Products of 16-bit operands by peers that multiply f32, on operands widened before anybody looks at the clock.
// `wide_case` is the case with f32 operands, `wide` memory for it in the precision of the narrow type.
std::vector<Contender> MakeWidened(const Case& wide_case, const Memory& wide, const std::vector<Peer>& peers);

Contender Ours(const Case& c, const Memory& memory);

// Our library, planning for this CPU and not for that it runs on: as a peer, whose name is that of the CPU.
Contender OursOn(const Cpu& cpu, const Case& c, const Memory& memory);

// A peer of our own for quantized operands, in other memory: the same rows and matrices in bf16.
Contender WithBf16(const Case& c, const Memory& wide);

// The same with widening bf16 operands as part of each call.
Contender WithWidening(const Contender& widened, const Case& c, const Memory& memory, const Memory& wide);

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_CONTENDERS_H_
