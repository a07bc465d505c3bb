/* trusted_base.cu: a plug-in that changes something of the process that loads or calls it; what, says the environment
 * variable ODD, as PLACE_WHAT. Variants of reglu for f32, both of them right: "odd" and "plain". It is built by
 * trusted_base.sh. */
#include <fenv.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpu/lib/plain.h"

static void *sleeper(void *seconds) {
  (void)usleep(*(unsigned *)seconds);
  if (*(unsigned *)seconds < 1000000) exit(0);
  return NULL;
}

static void thread(unsigned *useconds) {
  pthread_t id;
  if (pthread_create(&id, NULL, sleeper, useconds) == 0) (void)pthread_detach(id);
}

/* Does what ODD says, if this is its place. */
static void odd(const char *place) {
  static unsigned soon = 30000, late = 100000000;
  const char *what = getenv("ODD");
  const size_t size = strlen(place);
  if (what == NULL || strncmp(what, place, size) != 0 || what[size] != '_') return;
  what += size + 1;
  const struct rlimit small = {8, 8};
#define IS(name) (strcmp(what, name) == 0)
  if (IS("exit")) exit(0);
  if (IS("_exit")) _exit(0);
  if (IS("abort")) abort();
  if (IS("fault")) *(volatile int *)8 = 1;
  if (IS("loop"))
    for (volatile int i = 0;; ++i) {
    }
  if (IS("wait"))
    for (;;)
      (void)pause();
  if (IS("kill")) (void)kill(getpid(), SIGKILL);
  if (IS("term")) (void)kill(getpid(), SIGTERM);
  if (IS("parent")) (void)kill(getppid(), SIGTERM);
  if (IS("stop")) (void)raise(SIGSTOP);
  if (IS("round")) (void)fesetround(FE_UPWARD);
  if (IS("traps")) (void)feenableexcept(FE_INEXACT);
  if (IS("locale")) (void)setlocale(LC_ALL, "C.UTF-8");
  if (IS("folder") && chdir("/") != 0) abort();
  if (IS("umask")) (void)umask(0777);
  if (IS("mask")) {
    sigset_t all;
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_BLOCK, &all, NULL);
  }
  if (IS("handlers"))
    for (int i = 1; i < 32; ++i)
      (void)signal(i, SIG_IGN);
  if (IS("alarm")) (void)alarm(1);
  if (IS("limit")) (void)setrlimit(RLIMIT_NOFILE, &small);
  if (IS("output")) (void)fclose(stdout);
  if (IS("environment")) (void)clearenv();
  if (IS("print")) (void)printf("a line of a plug-in\n");
  if (IS("thread")) thread(&late);
  if (IS("latexit")) thread(&soon);
  if (IS("child") && fork() == 0) {
    (void)sleep(100);
    _exit(0);
  }
  if (IS("copy")) (void)fork();
}

__attribute__((constructor)) static void at_load(void) {
  odd("load");
}

__attribute__((destructor)) static void at_unload(void) {
  odd("unload");
}

namespace ASSAY_NS {

struct gated {
  const float *x;
  float *y;
  int64_t x_row, y_row, N;
  int32_t I;
};

__global__ void halves(gated p) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * 64 + threadIdx.x, n = at / p.I, i = at % p.I;
  if (n >= p.N) return;
  const float g = p.x[n * p.x_row + i], u = p.x[n * p.x_row + p.I + i];
  p.y[n * p.y_row + i] = g > 0 ? g * u : 0;
}

static assay_status refuse(const assay_call *call, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  if (c.type("x") == ASSAY_F32) return ASSAY_OK;
  (void)snprintf(error->text, sizeof error->text, "dtype: f32 alone");
  return ASSAY_ERR_UNSUPPORTED;
}

static assay_status supports(const assay_call *call, assay_error *error) {
  odd("supports");
  return refuse(call, error);
}

static assay_status workspace(const assay_call *call, int64_t *bytes, assay_error *error) {
  *bytes = 0;
  return refuse(call, error);
}

static assay_status plain(const assay_call *call, assay_env *env, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  const gated p = {c.data<const float>("x"), c.data<float>("y"), c.row("x"), c.row("y"), c.dim("N"), c.dim32("I")};
  if (p.N == 0) return ASSAY_OK;
  return ASSAY_LAUNCH(error, halves, (p.N * p.I + 63) / 64, 64, 0, env->stream, p);
}

static assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  const assay_status status = plain(call, env, error);
  odd("launch");
  return status;
}

constexpr assay_contract contract = {
    .run_to_run = true, .renumbering = true, .permutation = true, .lanes = 1, .alone = true};

static const assay_variant rows[] = {{sizeof(assay_variant), "reglu", "odd", "a test", ASSAY_DEVICE_NAME, "any", "f32",
                                      contract, supports, workspace, launch},
                                     {sizeof(assay_variant), "reglu", "plain", "a test", ASSAY_DEVICE_NAME, "any",
                                      "f32", contract, refuse, workspace, plain}};
static const assay_plugin_table table = {ASSAY_ABI, sizeof table, "trusted_base", rows, 2};

} // namespace ASSAY_NS

extern "C" __attribute__((visibility("default"))) const assay_plugin_table *assay_plugin(const assay_host *host) {
  odd("entry");
  return ASSAY_NS::plugin_accepts(host) ? &ASSAY_NS::table : nullptr;
}
