/* registry.h: what there is: operators from ops.def, variants from gpu/ and from plug-ins. */
#ifndef ASSAY_CORE_REGISTRY_H
#define ASSAY_CORE_REGISTRY_H

#include "assay/device.h"
#include "assay/plugin.h"

int32_t assay_op_count(void);
const assay_op *assay_op_at(int32_t index);
const assay_op *assay_op_find(const char *name); /* NULL: no such operator */

/* Built-in variants first, in the order of their tables (best first), then plug-ins'. */
int32_t assay_variant_count(void);
const assay_variant *assay_variant_at(int32_t index);
const char *assay_variant_origin(int32_t index); /* "built-in" or the plug-in's path */
const assay_variant *assay_variant_find(const char *op, const char *name, const char *device);

/* NULL: this build has no such device. names: "simt" or "simt, cuda", for messages. */
const assay_device *assay_device_find(const char *name);
const char *assay_device_names(void);

/* Loads a plug-in and adds its variants; refuses a wrong ABI, a missing symbol, a variant of an unknown
 * operator or with a name that is taken. Nothing is added on failure. */
assay_status assay_plugin_load(const char *path, assay_error *error);

#endif
