/* door.h: the parts of python_door.so, a plug-in whose variants are Python callables. The worker process of the runner
 * loads it. The callables run in an interpreter of their own, which the door starts once per worker (docs/python.md).
 */
#ifndef ASSAY_PYTHON_DOOR_H
#define ASSAY_PYTHON_DOOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <assay/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DOOR_MOST_VARIANTS = 64, DOOR_TEXT = 4096 };
/* The environment variable with the settings, which assay._settings writes. */
#define DOOR_SETTINGS "ASSAY_PYTHON_DOOR"

/* ---- settings.c ---- */

typedef struct door_row {
  const char *op, *name, *why, *claims;
  assay_contract contract;
  bool asks; /* the callable has a function `supports` of its own */
} door_row;

typedef struct door_settings {
  const char *python; /* the interpreter */
  door_row row[DOOR_MOST_VARIANTS];
  int32_t count;
} door_settings;

/* Reads the settings once; their texts live as long as the object. Fails with ASSAY_ERR_INPUT and the line that is
 * wrong. */
assay_status door_read_settings(door_settings *to, assay_error *error);

/* ---- a text that grows (describe.c) ---- */

typedef struct door_text {
  char *at;
  size_t size, room;
  bool full; /* memory was short */
} door_text;

void door_put(door_text *to, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- memory.c: the arguments in a file of memory that both processes map ---- */

typedef struct door_range {
  uintptr_t from, to;
} door_range;

typedef struct door_segment {
  door_range range;
  int64_t offset; /* the place of range.from in the shared memory */
} door_segment;

enum { DOOR_SEGMENTS = ASSAY_MAX_ARGS };

/* The places of a call's arguments in the shared memory, and the addresses that were copied there. */
typedef struct door_image {
  door_segment segment[DOOR_SEGMENTS];
  int32_t segments;
  int64_t offset[ASSAY_MAX_ARGS]; /* places of the elements 0 of the arguments */
  int64_t bytes;
  door_range *copied;
  int64_t copies, room;
  door_range *own; /* the arguments without what lies around them, sorted and joined */
  int64_t owns;
  unsigned char *before; /* the bytes that were copied around the arguments, in the order of addresses */
} door_image;

/* Copies what the call may reach, with the bytes around it, into the file. Addresses that are no memory are left out.
 * The arguments lie there as they lie in memory: strides, gaps and shared bytes are the same. */
assay_status door_copy_in(const assay_call *call, int file, door_image *image, assay_error *error);
/* Copies back what has changed. Bytes around an argument may be somebody else's, and change during a call. They are
 * compared with what was copied in, not with what is there now. */
assay_status door_copy_out(const door_image *image, int file, assay_error *error);
/* Frees the lists, and gives back the file's memory where it is large. */
void door_image_end(door_image *image, int file);

/* ---- describe.c ---- */

/* Writes the call as JSON: `what` is "call" or "supports". */
void door_describe(const assay_call *call, const door_image *image, const char *what, int32_t row, door_text *to);

/* ---- interpreter.c ---- */

/* Makes the sockets, the shared memory and the keeper, a process that starts the interpreter when it is first needed.
 */
assay_status door_open(const char *python, assay_error *error);
int door_memory(void);
/* Sends a question and waits for the answer, which begins with its kind: 'd' done, 'u' unsupported, 'x' an exception.
 * Does not return if the interpreter dies: this process then ends as the interpreter did. */
assay_status door_ask(const door_text *question, char *answer, size_t size, assay_error *error);

#ifdef __cplusplus
}
#endif
#endif
