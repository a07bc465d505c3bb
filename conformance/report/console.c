/* console.c: see console.h. */
#include "console.h"

#include <string.h>

#include "conformance/case/case.h"
#include "conformance/text/text.h"

/* A pipe ends in a log, where a long table buries the failures. */
enum { KINDS = 256, REASONS = 1024, ROWS_TERMINAL = 20, ROWS_PIPE = 8 };

static const char RED[] = "\033[1;31m", YELLOW[] = "\033[1;33m", GREEN[] = "\033[32m", DIM[] = "\033[2m",
                  PLAIN[] = "\033[0m";

void console_open(console *c, const report_options *options) {
  *c = (console){.to = options->text,
                 .progress = options->progress,
                 .colour = options->colour,
                 .all = options->all,
                 .started_ms = device_now_ms(),
                 .failures = {.most = KINDS},
                 .unsupported = {.most = REASONS}};
}

void console_free(console *c) {
  tally_free(&c->failures);
  tally_free(&c->unsupported);
}

static bool prints(const console *c) {
  return c->to != NULL && !c->silent;
}

static void clear_line(console *c) {
  if (c->line_open) (void)fputs("\r\033[K", c->to);
  c->line_open = false;
}

static void put_coloured(const console *c, const char *colour, const char *text, size_t size) {
  if (c->colour && colour != NULL) (void)fputs(colour, c->to);
  (void)fwrite(text, 1, size, c->to);
  if (c->colour && colour != NULL) (void)fputs(PLAIN, c->to);
}

/* Returns the colour of a verdict's name; NULL: it is none, or has none. */
static const char *colour_of(const char *word, size_t size) {
  static const verdict red[] = {VERDICT_FAIL, VERDICT_HANG, VERDICT_CRASH, VERDICT_STATE, VERDICT_HOST};
  for (size_t i = 0; i < sizeof red / sizeof *red; ++i)
    if (strlen(verdict_name(red[i])) == size && strncmp(word, verdict_name(red[i]), size) == 0) return RED;
  return strncmp(word, "WEAK", size) == 0 && size == 4 ? YELLOW : NULL;
}

/* A line whose first word may be a verdict. */
static void put_line(const console *c, const char *line) {
  const char *text = text_shown(line);
  const size_t word = strcspn(text, " ");
  put_coloured(c, colour_of(text, word), text, word);
  (void)fprintf(c->to, "%s\n", text + word);
}

void console_line(console *c, const char *text) {
  if (!prints(c)) return;
  clear_line(c);
  put_line(c, text);
}

/* ---- while it runs ----------------------------------------------------------------------------------- */

void console_result(console *c, const assay_case *one, const case_result *result, const replay *again) {
  if (result->verdict == VERDICT_UNSUPPORTED) (void)tally_add(&c->unsupported, one, result);
  if (verdict_is_good(result->verdict)) return;
  const tally_row *row = tally_add(&c->failures, one, result);
  if (!prints(c) || (row != NULL && row->count > 1 && !c->all)) return;
  clear_line(c);
  const char *name = verdict_name(result->verdict);
  put_coloured(c, colour_of(name, strlen(name)), name, strlen(name));
  char place[160];
  tally_place(one, place, sizeof place);
  (void)fprintf(c->to, " %s/%s on %s, %s: %s: %s\n  ", one->op->name, text_shown(one->variant), one->device,
                text_shown(place), result->check, text_shown(result->message));
  if (c->colour) (void)fputs(DIM, c->to);
  replay_write(c->to, again);
  if (c->colour) (void)fputs(PLAIN, c->to);
  (void)fputc('\n', c->to);
  (void)fflush(c->to);
}

void console_duration(FILE *to, double seconds) {
  const int64_t s = (int64_t)(seconds + 0.5);
  if (s >= 3600)
    (void)fprintf(to, "%lld h %lld min", (long long)(s / 3600), (long long)(s / 60 % 60));
  else if (s >= 60)
    (void)fprintf(to, "%lld min %lld s", (long long)(s / 60), (long long)(s % 60));
  else
    (void)fprintf(to, "%lld s", (long long)s);
}

/* Returns the share of the work that is done, cases of an earlier run left out; 0: not known. */
static double share_done(const console_state *s) {
  if (s->work > 0) return s->work_done / s->work;
  const int64_t total = s->total - s->past, done = s->done - s->past;
  return total > 0 && done > 0 ? (double)done / (double)total : 0;
}

void console_progress(console *c, const console_state *s) {
  const double now = device_now_ms(), seconds = 1e-3 * (now - c->started_ms), share = share_done(s);
  if (!prints(c) || !c->progress || now - c->shown_ms < 100.0) return;
  clear_line(c);
  text_count(c->to, s->done);
  if (s->total > 0) {
    (void)fputs(" of ", c->to);
    text_count(c->to, s->total);
  }
  (void)fprintf(c->to, " cases, %lld failed, %.1f cases/s", (long long)s->failed,
                (double)(s->done - s->past) / (seconds + 1e-3));
  /* The first second says too little of the pace. */
  if (share > 0 && share <= 1 && seconds >= 1) {
    (void)fputs(", about ", c->to);
    console_duration(c->to, seconds * (1 - share) / share);
    (void)fputs(" left", c->to);
  }
  (void)fflush(c->to);
  c->line_open = true;
  c->shown_ms = now;
}

/* ---- the end ----------------------------------------------------------------------------------------- */

static void failures(console *c) {
  int64_t hidden = 0;
  for (int32_t i = 0; i < c->failures.count && !c->all; ++i) {
    const tally_row *row = &c->failures.row[i];
    char line[480];
    if (row->count < 2) continue;
    hidden += row->count - 1;
    (void)snprintf(line, sizeof line, "%s %s/%s on %s, %s: %s: and %lld more like it", verdict_name(row->verdict),
                   row->op->name, row->variant, row->device, row->first, row->check, (long long)(row->count - 1));
    put_line(c, line);
  }
  if (hidden > 0) (void)fputs("    --all prints each of them with its replay line\n", c->to);
}

static void unsupported(console *c) {
  tally *t = &c->unsupported;
  const int32_t most = c->all ? t->count : c->progress ? ROWS_TERMINAL : ROWS_PIPE;
  int64_t rest = t->over;
  size_t width = 8;
  tally_sort(t);
  if (t->count == 0) return;
  for (int32_t i = 0; i < t->count && i < most; ++i) {
    const size_t size = strlen(t->row[i].op->name) + 1 + strlen(t->row[i].variant);
    width = size > width ? size : width;
  }
  (void)fprintf(c->to, "UNSUPPORTED by reason:\n    %8s  %-*s  reason\n", "cases", (int)width, "variant");
  for (int32_t i = 0; i < t->count; ++i) {
    const tally_row *row = &t->row[i];
    char name[128];
    if (i >= most) {
      rest += row->count;
      continue;
    }
    (void)snprintf(name, sizeof name, "%s/%s", row->op->name, row->variant);
    (void)fprintf(c->to, "    %8lld  %-*s  %s\n", (long long)row->count, (int)width, text_shown(name),
                  text_shown(row->reason));
  }
  if (rest > 0)
    (void)fprintf(c->to, "    %8lld  for %d other reasons (--all prints them)\n", (long long)rest,
                  (int)(t->count > most ? t->count - most : 0) + (t->over > 0));
}

/* A verdict of WEAK is about the case, which a reader may take for one about the kernel. */
static void explain_weak(const console *c) {
  for (int32_t i = 0; i < c->failures.count; ++i)
    if (c->failures.row[i].verdict == VERDICT_WEAK) {
      (void)fputs(
          "    WEAK: the case could not be judged and says nothing about the kernel. Change the case: its values, "
          "its sizes\n    or its tier (docs/judging.md, Verdicts).\n",
          c->to);
      return;
    }
}

void console_tables(console *c) {
  if (!prints(c)) return;
  clear_line(c);
  failures(c);
  explain_weak(c);
  unsupported(c);
}

static void put_count(const console *c, const char *colour, int64_t count, const char *what) {
  if (c->colour && colour != NULL && count > 0) (void)fputs(colour, c->to);
  text_count(c->to, count);
  (void)fprintf(c->to, " %s", what);
  if (c->colour && colour != NULL && count > 0) (void)fputs(PLAIN, c->to);
}

void console_summary(console *c, const report_totals *totals, int64_t cases, const char *device) {
  if (!prints(c)) return;
  clear_line(c);
  for (int v = 0; v <= VERDICT_WEAK; ++v) {
    const char *name = verdict_name((verdict)v);
    if (totals->verdicts[v] == 0 && verdict_is_rare((verdict)v)) continue;
    if (v > 0) (void)fputs(", ", c->to);
    put_count(c, v == VERDICT_PASS ? GREEN : colour_of(name, strlen(name)), totals->verdicts[v], name);
  }
  const struct {
    int64_t count;
    const char *colour, *what;
  } more[] = {{totals->expected, NULL, "failed as expected"},
              {totals->unclaimed, RED, "claims or laws without a PASS"},
              {totals->weak, YELLOW, "planted errors that a suite would miss"}};
  for (size_t i = 0; i < sizeof more / sizeof *more; ++i) {
    if (more[i].count == 0) continue;
    (void)fputs(", ", c->to);
    put_count(c, more[i].colour, more[i].count, more[i].what);
  }
  (void)fprintf(c->to, " in %.1f s (%.1f cases/s) on %s\n", totals->seconds,
                totals->seconds > 0 ? (double)cases / totals->seconds : 0.0, device != NULL ? device : "no device");
  (void)fflush(c->to);
}
