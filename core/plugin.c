/* plugin.c: loads a shared object, asks it for its variants, refuses what does not fit. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "core/registry_add.h"

static const struct assay_simt_api *simt_api;

void assay_registry_set_simt(const struct assay_simt_api *api) {
  simt_api = api;
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
  void *object = dlopen(local, RTLD_NOW | RTLD_LOCAL);
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
