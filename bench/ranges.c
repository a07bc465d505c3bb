/* ranges.c: header-only NVTX where the toolkit is, the driver's profiler border where the driver is loaded. */
#define _GNU_SOURCE
#include "ranges.h"

#include <dlfcn.h>
#include <stdio.h>

#ifdef ASSAY_HAVE_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

void ranges_push(const char *op, const char *variant) {
#ifdef ASSAY_HAVE_NVTX
  char name[128];
  (void)snprintf(name, sizeof name, "%s/%s", op, variant);
  (void)nvtxRangePushA(name);
#else
  (void)op, (void)variant;
#endif
}

void ranges_pop(void) {
#ifdef ASSAY_HAVE_NVTX
  (void)nvtxRangePop();
#endif
}

/* Asks a driver that is loaded already. No driver is loaded for this. */
void ranges_profiler(bool on) {
  void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (driver == NULL) return;
  int (*call)(void) = NULL;
  *(void **)&call = dlsym(driver, on ? "cuProfilerStart" : "cuProfilerStop");
  if (call != NULL) (void)call();
  (void)dlclose(driver);
}
