/* scheduler.cpp: launches, blocks, and whose turn it is. */
#include "simt/scheduler.h"

#include <stdlib.h>

#include <numeric>

namespace assay_simt_host {

Run run;
Block *here;
Block blocks[max_places];
Thread all_threads[max_places * max_threads];
assay_simt_now now;

static uint16_t rings[2][max_resident * max_threads]; /* for a launch, and for one within it */
static Cluster clusters[max_places];
static uint64_t seed, launches, launches_since_seed, choices_since_seed, blocks_begun;
static uint64_t window; /* blocks that run at each end of an axis of the grid; 0: all */
static bool running;
static bool before_only; /* go to the host, to run the previous launch */
static bool late;        /* launches are put off although they do not ask for it */

/* A launch that was put off, with its closure. */
static struct {
  bool is;
  assay_simt_launch request;
  void *closure;
  int64_t capacity;
} put_off;

/* splitmix64 */
static uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/* Returns a nearly uniform draw below `bound`. */
static uint32_t draw_below(uint32_t bound) {
  return static_cast<uint32_t>(((draw() >> 32) * static_cast<uint64_t>(bound)) >> 32);
}

/* Adds all threads to the ring. Warps come in a random order; within a warp lane i comes as (a·i xor c) mod 32 with a
 * odd. In half of the draws it goes warp after warp, else lane after lane across the warps. */
void push_all() {
  uint8_t order[max_warps];
  for (uint32_t w = 0; w < run.warps; ++w) {
    const uint32_t at = draw_below(w + 1);
    order[w] = order[at];
    order[at] = static_cast<uint8_t>(w);
  }
  const uint64_t bits = draw();
  const uint32_t a = static_cast<uint32_t>(bits >> 8) | 1u, c = static_cast<uint32_t>(bits >> 40);
  uint8_t lanes[32];
  for (uint32_t i = 0; i < 32; ++i)
    lanes[i] = static_cast<uint8_t>((a * i ^ c) & 31u);
  const auto push_lane = [](const Warp &w, uint32_t lane) {
    if (((w.present & ~w.exited) >> lane & 1u) != 0)
      run.ring[run.tail++ & run.ring_mask] = static_cast<uint16_t>(w.thread->slot + lane);
  };
  if ((bits >> 50 & 1u) != 0) {
    for (uint32_t w = 0; w < run.warps; ++w)
      for (uint32_t i = 0; i < 32; ++i)
        push_lane(here->warp[order[w]], lanes[i]);
  } else {
    for (uint32_t i = 0; i < 32; ++i)
      for (uint32_t w = 0; w < run.warps; ++w)
        push_lane(here->warp[order[w]], lanes[i]);
  }
}

void fail() {
  run.failed = true;
  Fiber *self = current()->fiber;
  race_end_thread();
  race_turn(nullptr);
  fiber_switch(self, &run.host);
  __builtin_unreachable();
}

void enter(Block *block) {
  here = block;
  now.block_index = block->index;
  now.shared_shift = (static_cast<int64_t>(block->place) - run.first_place) * shared_arena_bytes;
  now.dynamic_shared = shared_dynamic();
  if (block->watched && now.thread != nullptr) proxy_enter();
}

void leave() {
  const Thread *self = current();
  before_only = true;
  race_turn(nullptr);
  fiber_switch(self->fiber, &run.host);
}

static void begin_clusters();

static bool all_over() {
  for (uint32_t i = 0; i < run.places; ++i)
    if (blocks[run.first_place + i].exited != run.threads) return false;
  return true;
}

static bool block_is_clean() {
  return engine_end_block() && wgmma_end_block() && registers_end_block() && shared_end_block();
}

/* Ends a block whose last thread has ended. The next block begins in its place. If it was the last of its cluster, a
 * cluster begins in their places. */
static void end_block() {
  race_quiet(true); /* this is not done by the thread that ended last */
  const bool clean = block_is_clean();
  race_quiet(false);
  if (!clean) fail();
  if (run.launch->cluster > 1) {
    shared_begin_block(); /* for the other blocks of its cluster its memory is gone */
    race_end_thread();    /* for the host too */
  }
  if (--here->cluster->running != 0) return;
  race_turn(nullptr);
  begin_clusters();
}

/* Runs threads that have not begun, each to its end, as long as the next thread in turn is such a thread. */
static void fiber_main(context::transfer_t from) {
  Fiber *self = current()->fiber;
  fiber_arrive(self, from);
  for (;;) {
    /* Anything that a previous thread left on this stack belongs to that thread. Kernels need less than half of it. */
    race_fresh(static_cast<char *>(__builtin_frame_address(0)) - race_stack_bytes, race_stack_bytes);
    run.launch->body(run.launch->closure);
    Thread *ended = current();
    race_check();
    race_end_thread();
    thread_ended(ended);
    if (here->exited == run.threads && run.places > 1) end_block();
    Thread *next = next_turn();
    if (next != nullptr && here->watched) proxy_turn(ended, next);
    if (next != nullptr && next->fiber == nullptr) {
      ended->fiber = nullptr;
      next->fiber = self;
      give_turn(next);
      continue;
    }
    const bool over = run.places > 1 ? run.left == 0 && all_over() : here->exited == run.threads;
    if (next == nullptr && !over) {
      if (!run.waits_for) hang();
      before_only = true;
    }
    ended->fiber = nullptr;
    fiber_give_back(self);
    if (next != nullptr)
      give_turn(next);
    else
      race_turn(nullptr);
    fiber_switch(self, next != nullptr ? next->fiber : &run.host);
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

/* Number of polls that make a hang, if nothing can end them: a hundred rounds and more of every thread without any
 * other event. */
constexpr uint64_t max_polls = 1 << 22;

void yield() {
  if (++run.polls > max_polls) hang();
  push_back(current());
  engine_idle();
  wait_for_turn();
}

static void fault(const char *what, const char *file, int32_t line) {
  report(ASSAY_ERR_DEVICE, "thread %u: %s at %s:%d", current()->number, what, base_name(file), line);
  fail();
}

/* Sets threads, lanes and warps for blocks of this shape, in the places of this launch. */
static void shape_blocks(const int64_t extent[3]) {
  const unsigned x = static_cast<unsigned>(extent[0]), y = static_cast<unsigned>(extent[1]),
                 z = static_cast<unsigned>(extent[2]);
  static dim3 shaped[max_places];
  now.block_dim = dim3(x, y, z);
  run.threads = x * y * z;
  run.warps = (run.threads + 31) / 32;
  for (uint32_t p = run.first_place; p < run.first_place + run.places; ++p) {
    if (shaped[p].x == x && shaped[p].y == y && shaped[p].z == z && blocks[p].thread != nullptr) continue;
    shaped[p] = now.block_dim;
    Block *b = &blocks[p];
    b->place = p;
    b->thread = &all_threads[p * max_threads];
    for (uint32_t i = 0; i < run.threads; ++i) {
      Thread &t = b->thread[i];
      t.index = uint3{i % x, i / x % y, i / x / y};
      t.lane = i % 32;
      t.number = static_cast<uint16_t>(i);
      t.slot = static_cast<uint16_t>(p * max_threads + i);
      t.warp = &b->warp[i / 32];
    }
    for (uint32_t w = 0; w < run.warps; ++w) {
      const uint32_t lanes = run.threads - w * 32;
      b->warp[w].thread = &b->thread[w * 32];
      b->warp[w].present = lanes >= 32 ? 0xffffffffu : (1u << lanes) - 1u;
    }
  }
}

/* Begins a block in its place; its threads are in the ring. */
static void begin_block(Block *block, Cluster *cluster, uint32_t rank, uint3 index) {
  block->index = index;
  block->rank = rank;
  block->cluster = cluster;
  enter(block);
  for (uint32_t i = 0; i < run.threads; ++i) {
    block->thread[i].state = READY;
    block->thread[i].fiber = nullptr;
    block->thread[i].arrived = 0;
  }
  for (uint32_t w = 0; w < run.warps; ++w)
    block->warp[w].exited = block->warp[w].waiting = block->warp[w].registers = 0;
  block->exited = block->at_barrier = 0;
  block->votes = 0;
  block->count = ++blocks_begun;
  block->watched = false;
  block->registers = 0;
  for (NamedBarrier &b : block->named)
    b.arrived = 0;
  shared_begin_block();
  race_begin_block();
  push_all();
}

/* The clusters of a launch along an axis, of which the window leaves out those in the middle. A short axis stays whole.
 * A grid with two axes or more keeps few blocks of each. */
constexpr uint64_t short_axis = 128, most_of_two = 16;
struct Axis {
  uint64_t whole, kept;
  explicit Axis(uint64_t extent) : whole(extent), kept(extent) {
    const int64_t *grid = run.launch->grid;
    const bool several = (grid[0] > 1) + (grid[1] > 1) + (grid[2] > 1) > 1;
    const uint64_t ends = several && window > most_of_two ? most_of_two : window;
    if (ends > 0 && run.launch->resident <= 1 && whole / 2 >= ends && whole > short_axis) kept = 2 * ends;
  }
  uint64_t place(uint64_t number) const { return number < (kept + 1) / 2 ? number : whole - kept + number; }
};

static Axis axis(int32_t number) {
  const int64_t extent = run.launch->grid[number];
  return Axis(static_cast<uint64_t>(number == 0 ? extent / run.launch->cluster : extent));
}

/* Returns the next cluster. Cluster k of the order is (start + k·step) mod count, with step coprime to count. Its
 * blocks are neighbours along x. */
static uint3 next_cluster() {
  const uint64_t size = static_cast<uint64_t>(run.launch->cluster);
  const Axis x = axis(0), y = axis(1), z = axis(2);
  const uint64_t count = x.kept * y.kept * z.kept, at = run.at;
  run.at = at >= count - run.step ? at - (count - run.step) : at + run.step;
  --run.left;
  return uint3{static_cast<unsigned>(x.place(at % x.kept) * size), static_cast<unsigned>(y.place(at / x.kept % y.kept)),
               static_cast<unsigned>(z.place(at / x.kept / y.kept))};
}

/* Begins as many clusters as there are free places and work for. */
static void begin_clusters() {
  Block *const before = here;
  const uint32_t size = static_cast<uint32_t>(run.launch->cluster);
  for (uint32_t p = run.first_place; p < run.first_place + run.places && run.left > 0; p += size) {
    Cluster *cluster = &clusters[p];
    if (cluster->running != 0) continue;
    *cluster = Cluster{size, 0, 0};
    const uint3 first = next_cluster();
    for (uint32_t rank = 0; rank < size; ++rank)
      begin_block(&blocks[p + rank], cluster, rank, uint3{first.x + rank, first.y, first.z});
  }
  if (before != nullptr) enter(before);
}

static void run_before();

/* Runs threads until the ring is empty. */
static void run_ring() {
  for (Thread *first = pop(); first != nullptr && !run.failed; first = pop()) {
    Fiber *fiber = first->fiber != nullptr ? first->fiber : begin(first);
    if (fiber == nullptr) {
      run.failed = true;
      return;
    }
    give_turn(first);
    if (here->watched) proxy_enter(); /* no thread of the block handed its turn over */
    fiber_switch(&run.host, fiber);
    if (!before_only || run.failed) continue;
    before_only = false;
    run_before();
  }
}

static void run_grid() {
  const uint64_t count = axis(0).kept * axis(1).kept * axis(2).kept;
  run.step = draw() % count;
  while (std::gcd(run.step, count) != 1)
    run.step = (run.step + 1) % count;
  run.at = draw() % count;
  run.left = count;
  here = nullptr;
  if (run.places > 1) {
    for (uint32_t i = 0; i < run.places; ++i) {
      clusters[run.first_place + i].running = 0;
      blocks[run.first_place + i].exited = run.threads;
    }
    begin_clusters();
    run_ring();
  }
  while (run.left > 0 && !run.failed) {
    Block *const block = &blocks[run.first_place];
    clusters[run.first_place] = Cluster{1, 0, 0};
    begin_block(block, &clusters[run.first_place], 0, next_cluster());
    run_ring();
    if (!run.failed && !block_is_clean()) run.failed = true;
    if (!run.failed && run.waits_for) run_before(); /* the block did not wait for it */
  }
  if (!run.failed && run.waits_for) run_before();
}

/* Runs a launch. The caller has checked extents and shared memory (launch.h). */
static assay_status run_launch(const assay_simt_launch *request, bool within, bool waits_for, assay_error *error) {
  run.launch = request;
  run.first_place = within ? max_resident : 0;
  run.places = 1;
  if (request->cluster > 1 || request->resident > 1) {
    const int64_t wanted = request->resident > request->cluster ? request->resident : request->cluster;
    const int64_t clusters_wanted = (wanted + request->cluster - 1) / request->cluster;
    run.places = static_cast<uint32_t>(clusters_wanted * request->cluster);
    if (run.places > max_resident)
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "simt: %s: %u blocks under way together, allowed %u",
                        request->name, run.places, max_resident);
  }
  run.random = mix(mix(seed) + launches_since_seed++) | 1u;
  /* NaN is not seen in a maximum, a minimum and a clamp. Half of the launches have large numbers instead. */
  run.fresh = seed != 0 && (run.random >> 35 & 1u) != 0 ? 0x7F : 0xFF;
  const assay_status status = shared_begin_launch(request->shared_bytes, error);
  if (status != ASSAY_OK) return status;
  now.launch = ++launches;
  now.grid_dim = dim3(static_cast<unsigned>(request->grid[0]), static_cast<unsigned>(request->grid[1]),
                      static_cast<unsigned>(request->grid[2]));
  shape_blocks(request->block);
  now.elected = static_cast<uint32_t>(run.random >> 40 & 31u);
  run.ring = rings[within ? 1 : 0];
  run.ring_mask = (run.places > 1 ? max_resident : 1) * max_threads - 1;
  run.head = run.tail = 0;
  run.polls = 0;
  run.waits_for = waits_for;
  run.eager = (run.random >> 34 & 1u) != 0;
  run.error = error;
  run.failed = false;
  run.status = ASSAY_OK;
  run.host.size = 0; /* the first switch shows which host stack this is */
  race_begin_launch(within);
  run_grid();
  now.thread = nullptr;
  shared_end_launch();
  race_end_launch(within);
  return run.failed ? run.status : ASSAY_OK;
}

/* Runs what was put off. Uploads are older than the launch: an upload that comes later runs the launch first. */
static assay_status run_put_off(bool within, assay_error *error) {
  uploads_run();
  if (!put_off.is) return ASSAY_OK;
  put_off.is = false;
  return run_launch(&put_off.request, within, false, error);
}

/* Runs what was put off, while the blocks of this launch stay where they are. */
static void run_before() {
  const Run kept = run;
  const assay_simt_now then = now;
  Block *const block = here;
  Layout *const layout = shared_put_aside();
  engine_put_aside();
  const assay_status status =
      layout != nullptr ? run_put_off(true, kept.error)
                        : assay_fail(kept.error, ASSAY_ERR_MEMORY, "simt: no memory for a launch within a launch");
  run = kept;
  now = then;
  here = block;
  if (layout != nullptr) shared_take_up(layout);
  engine_take_up();
  run.waits_for = false;
  if (status != ASSAY_OK) {
    run.failed = true;
    run.status = status;
    return;
  }
  dependency_met();
}

static assay_status finish(assay_status status) {
  if (status != ASSAY_OK) {
    fiber_reset_all(&run.host);
    engine_drop();
  }
  running = false;
  return status;
}

static bool is_put_off() {
  return put_off.is || uploads_wait();
}

assay_status launch_flush(assay_error *error) {
  if (!is_put_off() || running) return ASSAY_OK;
  running = true;
  return finish(run_put_off(false, error));
}

assay_status launch_late(bool on, assay_error *error) {
  late = on;
  return on ? ASSAY_OK : launch_flush(error);
}

assay_status launch_settle(assay_error *error) {
  return put_off.is ? launch_flush(error) : ASSAY_OK;
}

bool launch_is_late() {
  return late;
}

static assay_status keep_for_later(const assay_simt_launch *request, assay_error *error) {
  if (request->closure_bytes > put_off.capacity) {
    free(put_off.closure);
    put_off.capacity = 0;
    put_off.closure = malloc(static_cast<size_t>(request->closure_bytes));
    if (put_off.closure == nullptr)
      return assay_fail(error, ASSAY_ERR_MEMORY, "simt: no memory to put off a launch of %s", request->name);
    put_off.capacity = request->closure_bytes;
  }
  memcpy(put_off.closure, request->closure, static_cast<size_t>(request->closure_bytes));
  put_off.request = *request;
  put_off.request.closure = put_off.closure;
  put_off.is = true;
  return ASSAY_OK;
}

static assay_status launch(const assay_simt_launch *request, assay_error *error) {
  if (running) return assay_fail(error, ASSAY_ERR_INTERNAL, "simt: a launch from within a launch");
  if (graph_recording()) return graph_record(request, error);
  assay_status status = flow_drain_own(error);
  /* With two dependent launches in a row, either may be the one that begins before the launch before it. */
  const bool overlaps = is_put_off() && request->dependent && (mix(mix(~seed) + ++choices_since_seed) >> 32 & 1u) != 0;
  const bool later = request->followed || (late && !overlaps);
  if (status == ASSAY_OK && (later || !request->dependent)) status = launch_flush(error);
  if (status != ASSAY_OK) return status;
  if (later) return keep_for_later(request, error);
  running = true;
  return finish(run_launch(request, false, is_put_off(), error));
}

} /* namespace assay_simt_host */

extern "C" void assay_simt_schedule(uint64_t seed) {
  assay_simt_host::seed = seed;
  assay_simt_host::launches_since_seed = assay_simt_host::choices_since_seed = 0;
}

extern "C" void assay_simt_window(int64_t ends) {
  assay_simt_host::window = ends > 0 ? static_cast<uint64_t>(ends) : 0;
}

extern "C" const assay_simt_api *assay_simt_host_api(void) {
  using namespace assay_simt_host;
  static const assay_simt_api api = {
      ASSAY_SIMT_ABI, sizeof(assay_simt_api), &now,  launch,      barrier,    warp,   yield,
      shared_site,    shared_dynamic_1024,    fault, race_atomic, race_fence, &hopper};
  assay_simt = &api;
  return &api;
}
