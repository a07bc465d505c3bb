/* registry.h: the operators of ops.def, the variants of gpu/ and of plug-ins, and the devices of this build. */
#ifndef ASSAY_CORE_REGISTRY_H
#define ASSAY_CORE_REGISTRY_H

#include <stdbool.h>

#include "assay/device.h"
#include "assay/plugin.h"

int32_t assay_op_count(void);
const assay_op *assay_op_at(int32_t index);
const assay_op *assay_op_find(const char *name); /* NULL: no such operator */

/* Returns the operator as variants see it: without reference, planted errors and accepts, which know the right results.
 * One that is not registered is the thread's own until its next call. */
const assay_op *assay_op_shown(const assay_op *op);

/* Returns the number of variants. The built-in ones come first, in the order of their tables (best first), then those
 * of plug-ins. */
int32_t assay_variant_count(void);
const assay_variant *assay_variant_at(int32_t index);
const char *assay_variant_origin(int32_t index); /* "built-in" or the plug-in's path */
const assay_variant *assay_variant_find(const char *op, const char *name, const char *device);

/* Returns a device; NULL if this build has none of that name. names: "simt" or "simt, cuda", for messages. */
const assay_device *assay_device_find(const char *name);
const char *assay_device_names(void);

/* Adds the variants of a plug-in. A child process loads it, enters it and unloads it, and tells what it has: this
 * process never does. The calls of these rows fail until they are bound. Refuses a file that ends the child or keeps
 * it busy, a wrong ABI and a missing symbol. Refuses a variant of an unknown operator, or with a name that is taken. A
 * failure adds nothing. */
assay_status assay_plugin_load(const char *path, assay_error *error);

/* Another way in than the symbol assay_plugin. It gives the same table, in the same child processes. The struct and its
 * texts live as long as the process. */
typedef struct assay_plugin_door {
  const char *name;   /* the file, for messages */
  const char *origin; /* source of the options in replay lines (conformance/report/replay.h) */
  const char *entry;  /* names the step from loading to the table, for messages: "its metadata" */
  void *context;
  /* Loads the object and gives its table. `step`, unless NULL, is told 'l' when it is loaded, and 'e' when the table
   * is known. */
  assay_status (*open)(void *context, void (*step)(char), const assay_plugin_table **table, assay_error *error);
  void (*close)(void *context); /* unloads it again */
  /* Does the host's work that a launch of this call needs. NULL: there is none. It is outside clock and capture, may
   * wait, and may decline the call with ASSAY_ERR_UNSUPPORTED. */
  assay_status (*plan)(void *context, const assay_variant *row, const assay_call *call, assay_env *env,
                       assay_error *error);
  bool direct; /* on simt, the code reads and writes memory by itself, without the scheduler */
} assay_plugin_door;

/* Does the same for a door. */
assay_status assay_plugin_load_by(const assay_plugin_door *door, assay_error *error);
/* Returns the door of the variant; NULL: it is built in, or came by the symbol assay_plugin. */
const assay_plugin_door *assay_plugin_door_of(const assay_variant *row);
/* Tells whether the variant works on simt's memory without its scheduler: such work is in no graph. */
bool assay_plugin_is_direct(const assay_variant *row);

/* Loads the plug-in of the variant into this process, once, and sets the calls of all its rows. Built-in variants need
 * nothing. It is for processes that the judging one does not depend on, and for debuggers. It notes what loading has
 * changed (core/modes.h). */
assay_status assay_plugin_bind(const assay_variant *row, assay_error *error);
/* Binds every variant. */
assay_status assay_plugin_bind_all(assay_error *error);
/* The plug-in's path; NULL: the variant is built in. */
const char *assay_plugin_origin(const assay_variant *row);
/* Returns what loading the variant's plug-in changed in this process; NULL: nothing. */
const char *assay_plugin_change(const assay_variant *row);
/* Tells whether this process has loaded a plug-in: its exit handlers are then no longer the program's alone. */
bool assay_plugin_here(void);

#endif
