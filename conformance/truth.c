/* truth.c: the lines. */
#include "truth.h"

#include <stdarg.h>

static void line(truth_log *log, const char *verdict, const char *name, const char *format, va_list list) {
  (void)fprintf(log->to, "%-11s %s: ", verdict, name);
  (void)vfprintf(log->to, format, list);
  (void)fputc('\n', log->to);
}

void truth_pass(truth_log *log, const char *name, const char *format, ...) {
  va_list list;
  va_start(list, format);
  line(log, "PASS", name, format, list);
  va_end(list);
  ++log->passed;
}

void truth_fail(truth_log *log, const char *name, const char *format, ...) {
  va_list list;
  va_start(list, format);
  line(log, "FAIL", name, format, list);
  va_end(list);
  ++log->failed;
}

void truth_uncovered(truth_log *log, const char *name, const char *format, ...) {
  va_list list;
  va_start(list, format);
  line(log, "not covered", name, format, list);
  va_end(list);
  ++log->uncovered;
}

void truth_sum(const truth_log *log) {
  (void)fprintf(log->to, "%lld passed, %lld failed, %lld not covered\n", (long long)log->passed, (long long)log->failed,
                (long long)log->uncovered);
}
