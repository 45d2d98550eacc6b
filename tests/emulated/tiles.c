// A Linux module for the emulator Bochs 3.0. Bochs has the tiles of AMX. It lacks XFD, the register by which Linux
// notices the first use of tiles in a process, and the instruction STTILECFG. Linux does not support tiles without XFD,
// so this module gives tiles to every process:
//
//   XCR0             The module sets the bits of tiles.
//   arch_prctl       A request to permit tiles succeeds.
//   /proc/cpuinfo    It lists the flags of tiles. Linux must be booted with clearcpuid=amx_tile.
//   STTILECFG        The module emulates it: it writes that no tiles are configured. This is right if
//                    no other code of the thread has configured tiles.
//
// Nothing saves tiles when Linux switches threads. So there must be one CPU, and threads that use tiles must be
// scheduled by SCHED_FIFO, under which no other thread interrupts them. Nothing saves tiles when a signal arrives,
// either: Linux then clears them.
#include <asm/cpufeature.h>
#include <asm/processor.h>
#include <asm/trapnr.h>
#include <linux/kdebug.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/uaccess.h>

#define TILE_STATES (3ull << 17)
#define GET_PERMISSIONS 0x1022
#define REQUEST_PERMISSION 0x1023

// Replaces the Linux function that implements these options of arch_prctl.
static long permit(int option, unsigned long argument) {
  if (option == REQUEST_PERMISSION) return 0;
  if (option != GET_PERMISSIONS) return -EINVAL;
  return put_user(TILE_STATES | 0xe7ull, (u64 __user*)argument);
}

static int go_to_permit(struct kprobe* probe, struct pt_regs* regs) {
  regs->ip = (unsigned long)permit;
  return 1;
}

static struct kprobe permission = {.symbol_name = "fpu_xstate_prctl", .pre_handler = go_to_permit};

// Returns the value of the general purpose register with this number in instructions.
static unsigned long general(const struct pt_regs* regs, int number) {
  const unsigned long all[] = {regs->ax, regs->cx, regs->dx,  regs->bx,  regs->sp,  regs->bp,  regs->si,  regs->di,
                               regs->r8, regs->r9, regs->r10, regs->r11, regs->r12, regs->r13, regs->r14, regs->r15};
  return all[number];
}

// Returns the address of the memory operand of an instruction whose ModRM byte is code[4]. It may have a base register
// and a displacement. Returns 0 if it has an index register. Sets *length to the number of bytes of the instruction.
static unsigned long address_of(const struct pt_regs* regs, const u8* code, int* length) {
  int mode = code[4] >> 6, base = code[4] & 7, at = 5;
  unsigned long address;
  s32 displacement = 0;
  if (base == 4) {
    if ((code[at] >> 3 & 7) != 4 || !(code[1] & 0x40)) return 0;
    base = code[at++] & 7;
  }
  if (mode == 1) displacement = (s8)code[at];
  if (mode == 2 || (mode == 0 && base == 5)) memcpy(&displacement, code + at, sizeof(displacement));
  *length = at + (mode == 1 ? 1 : mode == 2 || (mode == 0 && base == 5) ? 4 : 0);
  if (mode == 0 && base == 5) return at == 5 ? regs->ip + *length + displacement : 0;
  address = general(regs, base + (code[1] & 0x20 ? 0 : 8));
  return address + displacement;
}

// Emulates STTILECFG m512 (VEX.128.66.0F38.W0 49 /0) when Linux reports an invalid instruction of a process.
static int emulate(struct notifier_block* block, unsigned long event, void* data) {
  struct die_args* args = data;
  struct pt_regs* regs = args->regs;
  u8 code[16];
  int length = 0;
  unsigned long address, left;
  if (event != DIE_TRAP || args->trapnr != X86_TRAP_UD || !user_mode(regs)) return NOTIFY_DONE;
  // Both accesses to memory of the process may have to wait for a page, so interrupts must be enabled.
  local_irq_enable();
  left = copy_from_user(code, (const void __user*)regs->ip, sizeof(code));
  if (left == 0 && code[0] == 0xc4 && (code[1] & 0x1f) == 2 && code[2] == 0x79 && code[3] == 0x49 && code[4] < 0xc0 &&
      (code[4] & 0x38) == 0 && (address = address_of(regs, code, &length)) != 0) {
    left = clear_user((void __user*)address, 64);
  } else {
    left = 1;
  }
  local_irq_disable();
  if (left != 0) return NOTIFY_DONE;
  regs->ip += length;
  return NOTIFY_STOP;
}

static struct notifier_block invalid_opcode = {.notifier_call = emulate};

static u32 cpuid_edx_of_leaf_7(void) {
  u32 eax, ebx, ecx, edx;
  cpuid_count(7, 0, &eax, &ebx, &ecx, &edx);
  return edx;
}

static int __init tiles_init(void) {
  static const int features[] = {X86_FEATURE_AMX_TILE, X86_FEATURE_AMX_BF16, X86_FEATURE_AMX_INT8};
  const u32 has = cpuid_edx_of_leaf_7();
  u32 low, high;
  int i, error = register_kprobe(&permission);
  if (error != 0) return error;
  error = register_die_notifier(&invalid_opcode);
  if (error != 0) return error;
  for (i = 0; i < ARRAY_SIZE(features); ++i) {
    if ((has >> features[i] % 32 & 1) == 0) continue;
    set_cpu_cap(&boot_cpu_data, features[i]);
    set_cpu_cap(&cpu_data(0), features[i]);
  }
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  asm volatile("xsetbv" : : "a"(low | (u32)TILE_STATES), "d"(high), "c"(0));
  return 0;
}

module_init(tiles_init);
// This file is available under the GPL, too, in addition to the licence of all files. Linux permits calls of some of
// these functions only to modules under the GPL.
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Tiles of AMX on an emulator without XFD");
