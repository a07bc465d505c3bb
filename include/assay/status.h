/* status.h: the status that a fallible function returns, and the message that goes with it.
 * Compiles alone as C17 and as C++20; links against nothing. */
#ifndef ASSAY_STATUS_H
#define ASSAY_STATUS_H

#include <stdarg.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum assay_status {
  ASSAY_OK = 0,
  ASSAY_ERR_INPUT,       /* the caller's value is wrong; the message names it, what was found, what is allowed */
  ASSAY_ERR_UNSUPPORTED, /* legal, but this variant does not support it; the message gives the reason */
  ASSAY_ERR_MEMORY,
  ASSAY_ERR_IO,     /* a report or a pipe could not be written; unreadable input is ASSAY_ERR_INPUT */
  ASSAY_ERR_DEVICE, /* the device refused or faulted */
  ASSAY_ERR_HANG,   /* simt found every thread waiting */
  ASSAY_ERR_INTERNAL,
  ASSAY_ERR_RACE,     /* simt under ThreadSanitizer: two threads used one address without an order between them */
  ASSAY_ERR_NO_DEVICE /* the build or the machine has no such device; the request itself may be right */
} assay_status;

/* A message. The first failure of a call chain writes it; later failures leave it unchanged. */
typedef struct assay_error {
  char text[2048];
} assay_error;

/* Returns `status`. Writes the message to *error unless error is NULL or already holds one. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
static inline assay_status
assay_fail(assay_error *error, assay_status status, const char *format, ...) {
  if (error != NULL && error->text[0] == '\0') {
    va_list list;
    va_start(list, format);
    (void)vsnprintf(error->text, sizeof error->text, format, list);
    va_end(list);
  }
  return status;
}

#ifdef __cplusplus
}
#endif
#endif
