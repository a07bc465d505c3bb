/* switch.cpp: the switch between fibers on x86-64 (System V ABI). It keeps the registers that belong to the caller of a
 * function. The control words of the floating point units stay as they are, alike for all fibers. */
#include "simt/fibers.h"

#ifdef ASSAY_SIMT_SWITCH
#include <stdint.h>

extern "C" void assay_simt_start();

/* jump(to, data): pushes the registers and leaves its stack; takes up the one that stands at `to`. There, jump returns
 * where this fiber stands and `data`, or the entry begins with both as its argument. It ends with `ret`, not with a
 * jump. The processor predicts returns by the calls before them, and most threads wait at the same calls. */
asm(R"(
  .text
  .p2align 4
  .globl assay_simt_jump
  .hidden assay_simt_jump
  .type assay_simt_jump, @function
assay_simt_jump:
  pushq %rbp
  pushq %rbx
  pushq %r15
  pushq %r14
  pushq %r13
  pushq %r12
  movq %rsp, %rax
  movq %rdi, %rsp
  popq %r12
  popq %r13
  popq %r14
  popq %r15
  popq %rbx
  popq %rbp
  movq %rsi, %rdx
  movq %rax, %rdi
  ret
  .size assay_simt_jump, . - assay_simt_jump

  .p2align 4
  .globl assay_simt_start
  .hidden assay_simt_start
  .type assay_simt_start, @function
assay_simt_start:
  .cfi_startproc
  .cfi_undefined rip
  callq *%rbx
  ud2
  .cfi_endproc
  .size assay_simt_start, . - assay_simt_start
)");

namespace assay_simt_host {

/* Returns a context that begins with `entry` on the stack below `top`. */
context::fcontext_t make_context(void *top, void (*entry)(context::transfer_t)) {
  uintptr_t *const frame = reinterpret_cast<uintptr_t *>(reinterpret_cast<uintptr_t>(top) & ~UINT64_C(15)) - 7;
  for (int i = 0; i < 6; ++i)
    frame[i] = 0;
  frame[4] = reinterpret_cast<uintptr_t>(entry); /* rbx */
  frame[6] = reinterpret_cast<uintptr_t>(&assay_simt_start);
  return frame;
}

} /* namespace assay_simt_host */
#endif
