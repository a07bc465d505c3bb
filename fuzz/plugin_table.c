/* plugin_table.c: a plug-in whose table is the one that plugin.c has made. */
#include <stdio.h>
#include <stdlib.h>

#include "assay/plugin.h"

__attribute__((visibility("default"))) const assay_plugin_table *assay_plugin(const assay_host *host);

const assay_plugin_table *assay_plugin(const assay_host *host) {
  void *table = NULL;
  const char *text = getenv("ASSAY_FUZZ_TABLE");
  if (text == NULL || sscanf(text, "%p", &table) != 1) (void)snprintf(host->refusal, host->refusal_size, "no table");
  return (const assay_plugin_table *)table;
}
