/* scheduler.cpp: launches, blocks, and whose turn it is. */
#include "simt/scheduler.h"

#include <numeric>

namespace assay_simt_host {

Block block;
assay_simt_now now;

static uint64_t seed, launches_since_seed;
static bool running;

/* splitmix64 */
static uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/* A uniform draw below `bound`, nearly. */
static uint32_t draw_below(uint32_t bound) {
  return static_cast<uint32_t>(((draw() >> 32) * static_cast<uint64_t>(bound)) >> 32);
}

/* Warps in a random order; within a warp lane i comes (a·i xor c) mod 32 with a odd. In half of the draws
 * warp after warp, else lane after lane across the warps. */
void push_all() {
  uint8_t order[max_warps];
  for (uint32_t w = 0; w < block.warps; ++w) {
    const uint32_t at = draw_below(w + 1);
    order[w] = order[at];
    order[at] = static_cast<uint8_t>(w);
  }
  const uint64_t bits = draw();
  const uint32_t a = static_cast<uint32_t>(bits >> 8) | 1u, c = static_cast<uint32_t>(bits >> 40);
  const auto push_lane = [](const Warp &w, uint32_t lane) {
    if (((w.present & ~w.exited) >> lane & 1u) != 0) push_back(w.thread + lane);
  };
  if ((bits >> 50 & 1u) != 0) {
    for (uint32_t w = 0; w < block.warps; ++w)
      for (uint32_t i = 0; i < 32; ++i)
        push_lane(block.warp[order[w]], (a * i ^ c) & 31u);
  } else {
    for (uint32_t i = 0; i < 32; ++i)
      for (uint32_t w = 0; w < block.warps; ++w)
        push_lane(block.warp[order[w]], (a * i ^ c) & 31u);
  }
}

void fail() {
  block.failed = true;
  Fiber *self = current()->fiber;
  race_end_thread();
  race_turn(nullptr);
  fiber_switch(self, &block.host);
  __builtin_unreachable();
}

/* Runs threads that have not begun, each to its end, as long as the next in turn is one of these. */
static void fiber_main(context::transfer_t from) {
  Fiber *self = current()->fiber;
  fiber_arrive(self, from);
  for (;;) {
    /* What a thread before left on this stack is another's. Kernels need less than half of it. */
    race_fresh(static_cast<char *>(__builtin_frame_address(0)) - race_stack_bytes, race_stack_bytes);
    block.launch->body(block.launch->closure);
    Thread *ended = current();
    race_check();
    race_end_thread();
    thread_ended(ended);
    Thread *next = next_turn();
    if (next != nullptr && block.watched) proxy_turn(ended, next);
    if (next != nullptr && next->fiber == nullptr) {
      ended->fiber = nullptr;
      next->fiber = self;
      now.thread = next;
      race_turn(next);
      continue;
    }
    if (next == nullptr && block.exited != block.threads) hang();
    ended->fiber = nullptr;
    fiber_give_back(self);
    now.thread = next;
    race_turn(next);
    fiber_switch(self, next != nullptr ? next->fiber : &block.host);
  }
}

Fiber *begin(Thread *thread) {
  thread->fiber = fiber_take(fiber_main);
  if (thread->fiber == nullptr) report(ASSAY_ERR_MEMORY, "no memory for the stack of thread %u", thread->number);
  return thread->fiber;
}

void hang() {
  report_hang();
  fail();
}

void yield() {
  push_back(current());
  engine_idle();
  wait_for_turn();
}

static void fault(const char *what, const char *file, int32_t line) {
  report(ASSAY_ERR_DEVICE, "thread %u: %s at %s:%d", current()->number, what, base_name(file), line);
  fail();
}

/* Threads, lanes and warps for blocks of this shape. */
static void shape_block(const int64_t extent[3]) {
  const unsigned x = static_cast<unsigned>(extent[0]), y = static_cast<unsigned>(extent[1]),
                 z = static_cast<unsigned>(extent[2]);
  if (now.block_dim.x == x && now.block_dim.y == y && now.block_dim.z == z && block.threads == x * y * z) return;
  now.block_dim = dim3(x, y, z);
  block.threads = x * y * z;
  block.warps = (block.threads + 31) / 32;
  for (uint32_t i = 0; i < block.threads; ++i) {
    Thread &t = block.thread[i];
    t.index = uint3{i % x, i / x % y, i / x / y};
    t.lane = i % 32;
    t.number = static_cast<uint16_t>(i);
    t.warp = &block.warp[i / 32];
  }
  for (uint32_t w = 0; w < block.warps; ++w) {
    const uint32_t lanes = block.threads - w * 32;
    block.warp[w].thread = &block.thread[w * 32];
    block.warp[w].present = lanes >= 32 ? 0xffffffffu : (1u << lanes) - 1u;
  }
}

static void run_block() {
  for (uint32_t i = 0; i < block.threads; ++i) {
    block.thread[i].state = READY;
    block.thread[i].fiber = nullptr;
  }
  for (uint32_t w = 0; w < block.warps; ++w)
    block.warp[w].exited = block.warp[w].waiting = 0;
  block.exited = block.at_barrier = 0;
  block.votes = 0;
  ++block.count;
  block.watched = false;
  for (NamedBarrier &b : block.named)
    b.arrived = 0;
  block.head = block.tail = 0;
  shared_begin_block();
  race_begin_block();
  push_all();
  Thread *first = pop();
  Fiber *fiber = begin(first);
  if (fiber == nullptr) {
    block.failed = true;
    return;
  }
  now.thread = first;
  race_turn(first);
  fiber_switch(&block.host, fiber);
  if (!block.failed && (!engine_end_block() || !wgmma_end_block() || !shared_end_block())) block.failed = true;
}

/* Block k of the order is (start + k·step) mod count, step coprime to count. */
static void run_grid(const int64_t extent[3]) {
  const uint64_t x = static_cast<uint64_t>(extent[0]), y = static_cast<uint64_t>(extent[1]);
  const uint64_t count = x * y * static_cast<uint64_t>(extent[2]);
  uint64_t step = draw() % count;
  while (std::gcd(step, count) != 1)
    step = (step + 1) % count;
  uint64_t at = draw() % count;
  for (uint64_t k = 0; k < count && !block.failed; ++k) {
    now.block_index =
        uint3{static_cast<unsigned>(at % x), static_cast<unsigned>(at / x % y), static_cast<unsigned>(at / x / y)};
    run_block();
    at = at >= count - step ? at - (count - step) : at + step;
  }
}

/* Extents and shared memory were checked by the caller (launch.h). */
static assay_status launch(const assay_simt_launch *request, assay_error *error) {
  if (running) return assay_fail(error, ASSAY_ERR_INTERNAL, "simt: a launch from within a launch");
  if (graph_recording()) return graph_record(request, error);
  assay_status status = flow_drain_own(error);
  if (status == ASSAY_OK) status = shared_begin_launch(request->shared_bytes, error);
  if (status != ASSAY_OK) return status;
  running = true;
  ++now.launch;
  now.grid_dim = dim3(static_cast<unsigned>(request->grid[0]), static_cast<unsigned>(request->grid[1]),
                      static_cast<unsigned>(request->grid[2]));
  shape_block(request->block);
  block.random = mix(mix(seed) + launches_since_seed++) | 1u;
  block.launch = request;
  block.error = error;
  block.failed = false;
  block.status = ASSAY_OK;
  block.host.size = 0; /* which host stack this is shows at the first switch */
  race_begin_launch();
  run_grid(request->grid);
  now.thread = nullptr;
  shared_end_launch();
  race_end_launch();
  if (block.failed) {
    fiber_reset_all(&block.host);
    engine_drop();
    status = block.status;
  }
  running = false;
  return status;
}

} /* namespace assay_simt_host */

extern "C" void assay_simt_schedule(uint64_t seed) {
  assay_simt_host::seed = seed;
  assay_simt_host::launches_since_seed = 0;
}

extern "C" const assay_simt_api *assay_simt_host_api(void) {
  using namespace assay_simt_host;
  static const assay_simt_api api = {
      ASSAY_SIMT_ABI, sizeof(assay_simt_api), &now,  launch,      barrier,    warp,   yield,
      shared_site,    shared_dynamic_1024,    fault, race_atomic, race_fence, &hopper};
  assay_simt = &api;
  return &api;
}
