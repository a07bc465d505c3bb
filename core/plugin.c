/* plugin.c: loads a shared object, asks it for its variants, refuses what does not fit. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/registry_add.h"

static const struct assay_simt_api *simt_api;

void assay_registry_set_simt(const struct assay_simt_api *api) {
  simt_api = api;
}

enum { LOAD_SECONDS = 60 };

/* A file that is cut or damaged can kill the loader, or keep it busy for ever: a process of its own goes first.
 * Returns the signal that ended it, 0 if none did. Where there is no process to be had, nothing is known. */
static int killed_by(const char *path) {
  static const int fatal[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGALRM};
  int status = 0;
  const pid_t pid = fork();
  if (pid == 0) {
    for (size_t i = 0; i < sizeof fatal / sizeof fatal[0]; ++i)
      (void)signal(fatal[i], SIG_DFL);
    (void)alarm(LOAD_SECONDS);
    (void)dlopen(path, RTLD_NOW | RTLD_LOCAL);
    _exit(0);
  }
  if (pid < 0) return 0;
  while (waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) return 0;
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

assay_status assay_plugin_load(const char *path, assay_error *error) {
  assay_status status = ASSAY_ERR_INPUT;
  char refusal[512] = "";
  char *origin = NULL;
  /* A path without a slash would be searched for in the system's folders. */
  const size_t size = strlen(path) + 3;
  char *local = malloc(size);
  if (local == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "plug-in %s: out of memory", path);
  (void)snprintf(local, size, "%s%s", strchr(path, '/') != NULL ? "" : "./", path);
  void *object = NULL;
  const int fatal = killed_by(local);
  if (fatal != 0) {
    assay_fail(error, status, "plug-in %s: cannot be loaded: the file is damaged, signal %d ends the loader", path,
               fatal);
    goto done;
  }
  object = dlopen(local, RTLD_NOW | RTLD_LOCAL);
  if (object == NULL) {
    assay_fail(error, status, "plug-in %s: cannot be loaded: %s", path, dlerror());
    goto done;
  }
  assay_plugin_entry entry = NULL;
  void *symbol = dlsym(object, "assay_plugin");
  memcpy(&entry, &symbol, sizeof entry); /* ISO C has no cast from an object to a function pointer */
  if (entry == NULL) {
    assay_fail(error, status, "plug-in %s: has no symbol assay_plugin", path);
    goto done;
  }
  const assay_host host = {ASSAY_ABI, sizeof(assay_host), simt_api, refusal, sizeof refusal};
  const assay_plugin_table *table = entry(&host);
  if (table == NULL) {
    assay_fail(error, status, "plug-in %s: refuses: %s", path, refusal[0] != '\0' ? refusal : "no reason given");
    goto done;
  }
  if (table->abi != ASSAY_ABI) {
    assay_fail(error, status, "plug-in %s: ABI %u, this build takes %d", path, table->abi, ASSAY_ABI);
    goto done;
  }
  if (table->struct_size != sizeof(assay_plugin_table)) {
    assay_fail(error, status, "plug-in %s: its table has %u bytes, this build's has %zu", path, table->struct_size,
               sizeof(assay_plugin_table));
    goto done;
  }
  if (table->variant_count < 1 || table->variants == NULL) {
    assay_fail(error, status, "plug-in %s: gives no variants", path);
    goto done;
  }
  origin = malloc(strlen(path) + 1);
  if (origin == NULL) {
    status = assay_fail(error, ASSAY_ERR_MEMORY, "plug-in %s: out of memory", path);
    goto done;
  }
  memcpy(origin, path, strlen(path) + 1);
  status = assay_registry_add_variants(table->variants, table->variant_count, origin, error);
done:
  if (status != ASSAY_OK) {
    free(origin);
    if (object != NULL) (void)dlclose(object);
  }
  free(local);
  return status;
}
