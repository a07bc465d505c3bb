/* bench_fixture.c: a device with a clock, and launches that go wrong late. */
#include "bench_fixture.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "core/rng.h"
#include "fake.h"

enum { CACHED = 256, CACHE_BYTES = 1 << 20, ARG_Y = 4 };

late_fault bench_fault = LATE_NONE;
int64_t bench_late = 1;
bool bench_large = false;
double bench_launch_us = 10, bench_jitter = 0.01;

static double clock_us, marked[2];
static bool flushed, faulted;
static int64_t timed; /* calls since the clocks were first asked for: right before the first sample */
static bool timing_began;
static uint64_t draws;

/* ---- work that is under way elsewhere ---------------------------------------------------------------- */

static struct {
  assay_tensor arg[ASSAY_MAX_ARGS];
  double param[ASSAY_MAX_PARAMS];
} waiting[CACHED];
static int32_t waiting_count;
static bool waiting_slowly;

static void run_waiting(void) {
  assay_env env = {.stream = NULL};
  for (int32_t i = 0; i < waiting_count; ++i) {
    const assay_call call = {&plain_mix_op, waiting[i].arg, waiting[i].param};
    (void)plain_mix.launch(&call, &env, NULL);
  }
  const struct timespec pause = {0, 3000000};
  if (waiting_count > 0 || waiting_slowly) (void)nanosleep(&pause, NULL);
  waiting_count = 0;
  waiting_slowly = false;
}

/* ---- the kernel -------------------------------------------------------------------------------------- */

static struct {
  const void *to;
  unsigned char *bytes;
} cached[CACHED];

static int64_t y_bytes(const assay_call *call) {
  return call->arg[ARG_Y].shape[0] * call->arg[ARG_Y].shape[1] * (int64_t)sizeof(float);
}

static void from_cache(const assay_call *call) {
  for (int32_t i = 0; i < CACHED && cached[i].to != NULL; ++i)
    if (cached[i].to == call->arg[ARG_Y].data) memcpy(call->arg[ARG_Y].data, cached[i].bytes, (size_t)y_bytes(call));
}

static void into_cache(const assay_call *call) {
  int32_t i = 0;
  while (i < CACHED - 1 && cached[i].to != NULL && cached[i].to != call->arg[ARG_Y].data)
    ++i;
  if (cached[i].bytes == NULL) cached[i].bytes = malloc((size_t)y_bytes(call));
  cached[i].to = call->arg[ARG_Y].data;
  if (cached[i].bytes != NULL) memcpy(cached[i].bytes, call->arg[ARG_Y].data, (size_t)y_bytes(call));
}

static bool wrong_now(void) {
  switch (bench_fault) {
  case LATE_ALWAYS:
    return true;
  case LATE_AFTER:
    return timing_began && timed >= bench_late;
  case LATE_ONCE:
    return timing_began && timed == bench_late;
  case LATE_COLD:
    return flushed;
  default:
    return false;
  }
}

static assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  assay_rng rng = {++draws, 7, 0};
  if (timing_began) ++timed;
  const bool late = timing_began && timed >= bench_late;
  clock_us += bench_launch_us * (1 + bench_jitter * ((double)assay_rng_range(&rng, 0, 2000) / 1000 - 1));
  if (call->arg[0].data == NULL || call->arg[0].shape[0] < 1) return plain_mix.launch(call, env, error);
  if (bench_fault == LATE_CRASH && late) (void)raise(SIGKILL);
  if (bench_fault == LATE_FAULT && late) faulted = true;
  if (bench_fault == LATE_OTHER_STREAM && timing_began && waiting_count < CACHED) {
    memcpy(waiting[waiting_count].arg, call->arg, (size_t)call->op->arg_count * sizeof *call->arg);
    memcpy(waiting[waiting_count++].param, call->param, (size_t)call->op->param_count * sizeof *call->param);
    return ASSAY_OK;
  }
  waiting_slowly = bench_fault == LATE_SLOW_STREAM && timing_began;
  plain_broken = wrong_now() ? PLAIN_GAIN_LOST : PLAIN_NONE;
  const assay_status status = plain_mix.launch(call, env, error);
  plain_broken = PLAIN_NONE;
  flushed = false;
  if (bench_fault == LATE_CACHED && late) from_cache(call);
  if (bench_fault == LATE_CACHED && timing_began) into_cache(call);
  if (bench_fault == LATE_GUARD && late) ((unsigned char *)call->arg[ARG_Y].data)[y_bytes(call) + 3] ^= 1;
  if (bench_fault == LATE_INPUT && late) ((float *)call->arg[1].data)[2] += 1;
  return status;
}

static assay_status supports(const assay_call *call, assay_error *error) {
  (void)call, (void)error;
  return ASSAY_OK;
}

static assay_status workspace(const assay_call *call, int64_t *bytes, assay_error *error) {
  (void)call, (void)error;
  *bytes = 0;
  return ASSAY_OK;
}

const assay_variant bench_variant = {.struct_size = sizeof(assay_variant),
                                     .op = "fake_mix",
                                     .name = "late",
                                     .why = "selftest",
                                     .device = "cuda",
                                     .arch = "any",
                                     .claims = "f32|false,true",
                                     .contract = {.run_to_run = true, .permutation = true},
                                     .supports = supports,
                                     .workspace = workspace,
                                     .launch = launch};

/* ---- the device -------------------------------------------------------------------------------------- */

static assay_status cache(int64_t *bytes, assay_error *error) {
  (void)error;
  *bytes = bench_large ? 1 : CACHE_BYTES;
  return ASSAY_OK;
}
static assay_status flush(assay_error *error) {
  (void)error;
  flushed = true;
  return ASSAY_OK;
}
static assay_status mark(int32_t number, assay_error *error) {
  (void)error;
  marked[number] = clock_us;
  return ASSAY_OK;
}
static assay_status between(double *us, assay_error *error) {
  (void)error;
  *us = marked[1] - marked[0];
  return ASSAY_OK;
}
static assay_status wait_all(assay_error *error) {
  (void)error;
  run_waiting();
  return ASSAY_OK;
}
static assay_status empty(void *stream, assay_error *error) {
  (void)stream, (void)error;
  clock_us += 1;
  return ASSAY_OK;
}
static assay_status rate(assay_rate which, double *per_second, assay_error *error) {
  (void)error;
  *per_second = which == ASSAY_RATE_COPY ? 1e9 : 1e12;
  return ASSAY_OK;
}
static assay_status state(assay_device_state *current, assay_error *error) {
  (void)error;
  timing_began = true;
  *current = (assay_device_state){1000, 2000, 40, 300000, 0};
  return ASSAY_OK;
}
static const assay_device_timing timing = {cache, flush, mark, between, wait_all, empty, rate, state};

static assay_status open_device(assay_error *error) {
  (void)error;
  return ASSAY_OK;
}
static void close_device(void) {}
static assay_status info(assay_device_info *device, assay_error *error) {
  (void)error;
  *device = (assay_device_info){.name = "cuda", .multiprocessors = 2};
  return ASSAY_OK;
}
static assay_status allocate(int64_t bytes, void **memory, assay_error *error) {
  *memory = aligned_alloc(256, (size_t)(bytes + 255) / 256 * 256);
  return *memory != NULL ? ASSAY_OK : assay_fail(error, ASSAY_ERR_MEMORY, "no memory");
}
static void release(void *memory) {
  free(memory);
}
static assay_status copy(void *to, const void *from, int64_t bytes, assay_error *error) {
  (void)error;
  memcpy(to, from, (size_t)bytes);
  return ASSAY_OK;
}
static void *stream(void) {
  return NULL;
}
static assay_status synchronize(assay_error *error) {
  const bool now = faulted;
  faulted = false;
  return now ? assay_fail(error, ASSAY_ERR_DEVICE, "illegal address") : ASSAY_OK;
}
static void schedule(uint64_t seed) {
  (void)seed;
}

const assay_device bench_device = {.name = "cuda",
                                   .open = open_device,
                                   .close = close_device,
                                   .info = info,
                                   .alloc = allocate,
                                   .release = release,
                                   .upload = copy,
                                   .download = copy,
                                   .stream = stream,
                                   .synchronize = synchronize,
                                   .schedule = schedule,
                                   .timing = &timing};

assay_case bench_fixture_case(void) {
  assay_case one = plain_case("fake_mix tier=calibrated dtype=f32 N=12 C=16 y_out=true seed=5");
  (void)snprintf(one.variant, sizeof one.variant, "late");
  (void)snprintf(one.device, sizeof one.device, "cuda");
  if (assay_variant_find("fake_mix", "late", "cuda") == NULL) {
    (void)assay_registry_add_device(&bench_device, NULL);
    (void)assay_registry_add_variants(&bench_variant, 1, "built-in", NULL);
  }
  return one;
}

void bench_fixture_time(bench_result *result) {
  assay_case one = bench_fixture_case();
  bench_options options = bench_usual();
  options.min_samples = 20;
  options.max_samples = 40;
  if (bench_large) options.large_bytes = 0;
  bench_release();
  timing_began = false;
  timed = 0;
  flushed = false;
  faulted = false;
  waiting_count = 0;
  waiting_slowly = false;
  for (int32_t i = 0; i < CACHED; ++i)
    cached[i].to = NULL;
  bench_case(&one, &bench_variant, &bench_device, &options, result);
  case_free(&one);
}
