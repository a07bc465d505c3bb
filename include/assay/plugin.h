/* plugin.h: the door for outside variants. A plug-in is a shared object with one symbol:
 *
 *   const assay_plugin_table *assay_plugin(const assay_host *host);
 *
 * It returns NULL to refuse (and writes why into host->refusal), else a table that lives as long as the
 * object is loaded. It needs these headers and nothing to link. */
#ifndef ASSAY_PLUGIN_H
#define ASSAY_PLUGIN_H

#include <stddef.h>

#include "variant.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ASSAY_ABI = 2 };

struct assay_simt_api; /* simt's scheduler: <assay/simt/cuda.h> */

typedef struct assay_host {
  uint32_t abi, struct_size;
  const struct assay_simt_api *simt; /* NULL where the host was built without simt */
  char *refusal;                     /* buffer for the reason of a refusal */
  size_t refusal_size;
} assay_host;

typedef struct assay_plugin_table {
  uint32_t abi, struct_size;
  const char *name;
  const assay_variant *variants;
  int32_t variant_count;
} assay_plugin_table;

typedef const assay_plugin_table *(*assay_plugin_entry)(const assay_host *host);

#ifdef __cplusplus
}
#endif
#endif
