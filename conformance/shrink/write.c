/* write.c: prints the smallest case for people, and as a suite of one item. */
#include <ctype.h>
#include <inttypes.h>

#include "conformance/case/case.h"
#include "conformance/report/report.h"
#include "conformance/text/text.h"
#include "shrink.h"

/* Writes the command that runs the smallest case again. */
static void put_replay(FILE *to, const shrink_outcome *outcome, const char *plugin) {
  static char line[CASE_MAX_LINE];
  const assay_case *one = &outcome->smallest;
  assay_error error = {""};
  if (case_print(one, line, sizeof line, &error) != ASSAY_OK) (void)snprintf(line, sizeof line, "(%s)", error.text);
  replay_write(to, &(replay){.descriptor = line,
                             .op = one->op->name,
                             .variant = one->variant,
                             .device = one->device,
                             .suite = one->suite,
                             .name = one->name,
                             .check = outcome->failure.check,
                             .verdict = outcome->failure.verdict,
                             .plugins = plugin != NULL ? plugin : "",
                             .forced = "",
                             .deadline_s = outcome->deadline_s});
  (void)fputc('\n', to);
}

static void put_run(FILE *to, const assay_case *one, const char *plugin, const char *suite) {
  (void)fprintf(to, "assay run %s --variant %s=%s --device %s", suite, one->op->name, one->variant, one->device);
  if (one->section == SECTION_BENCH) (void)fputs(" --section bench", to);
  if (plugin != NULL) replay_origin(to, plugin);
  (void)fputc('\n', to);
}

void shrink_print(FILE *to, const shrink_outcome *outcome, const char *plugin, const char *suite) {
  const assay_case *one = &outcome->smallest;
  const case_result *r = &outcome->result;
  (void)fprintf(to, "%s %s/%s on %s%s%s\n", verdict_name(outcome->failure.verdict), one->op->name,
                text_shown(one->variant), one->device, outcome->failure.check[0] != '\0' ? ": " : "",
                outcome->failure.check);
  if (!outcome->reproduced) {
    (void)fprintf(to, "  not shrunk: alone it ends with %s%s%s%s%s\n", verdict_name(r->verdict),
                  r->check[0] != '\0' ? " " : "", r->check, r->message[0] != '\0' ? ": " : "", text_shown(r->message));
    (void)fputs("  ", to);
    put_replay(to, outcome, plugin);
    return;
  }
  (void)fprintf(to, "  smallest after %" PRId64 " cases%s: %s\n", outcome->cases,
                outcome->exhausted ? " (the budget is spent)" : "", text_shown(r->message));
  if (outcome->fails < outcome->runs)
    (void)fprintf(to, "  not each time: it fails so in %d of %d runs\n", outcome->fails, outcome->runs);
  if (r->explanation[0] != '\0') (void)fprintf(to, "  explained by: %s\n", text_shown(r->explanation));
  (void)fprintf(to, "  %s\n  ", text_shown(outcome->difference));
  put_replay(to, outcome, plugin);
  if (suite == NULL) return;
  (void)fputs("  ", to);
  put_run(to, one, plugin, suite);
}

/* ---- YAML -------------------------------------------------------------------------------------------- */

/* Writes a comment of one line, without characters that YAML refuses. */
static void put_comment(FILE *to, const char *text) {
  (void)fputs("# ", to);
  for (const char *at = text; *at != '\0'; ++at)
    (void)fputc((unsigned char)*at < 0x20 || (unsigned char)*at > 0x7E ? '?' : *at, to);
  (void)fputc('\n', to);
}

static void put_lengths(FILE *to, const char *name, const int32_t *list, int32_t count) {
  (void)fprintf(to, "    %s: {list: [", name);
  for (int32_t i = 0; i < count; ++i)
    (void)fprintf(to, "%s%" PRId32, i > 0 ? ", " : "", list[i]);
  (void)fputs("]}\n", to);
}

static void put_shares(FILE *to, const assay_case *one) {
  bool any = false;
  for (int32_t i = 0; i < one->batch; ++i)
    any = any || one->share_with[i] >= 0;
  if (!any) return;
  (void)fputs("    share: {list: [", to);
  for (int32_t i = 0; i < one->batch; ++i) {
    (void)fputs(i > 0 ? ", " : "", to);
    if (one->share_with[i] < 0)
      (void)fputs("\"-\"", to);
    else
      (void)fprintf(to, "\"%" PRId32 ":%" PRId32 "\"", one->share_with[i], one->share_tokens[i]);
  }
  (void)fputs("]}\n", to);
}

static bool reserved(const char *name) {
  static const char *const names[] = {"suite", "section", "name", "variant", "device"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i)
    if (strcmp(name, names[i]) == 0) return true;
  return false;
}

static void put_key(FILE *to, const assay_case *one, const case_key *key) {
  char number[40];
  const double value = key_get(one, key);
  const bool plain = !(value < key->fallback) && !(value > key->fallback) && value == value;
  if (reserved(key->name) || (key->kind <= KEY_ENUM && !key->always && plain)) return;
  switch (key->kind) {
  case KEY_INTEGER:
  case KEY_REAL:
    key_print_real(value, number, sizeof number);
    (void)fprintf(to, "    %s: %s\n", key->name, key->store == STORE_I32 && value < 0 ? "interleaved" : number);
    return;
  case KEY_BOOL:
    (void)fprintf(to, "    %s: %s\n", key->name, value != 0 ? "true" : "false");
    return;
  case KEY_ENUM:
    (void)fprintf(to, "    %s: %s\n", key->name, key_name_of(key, (int64_t)value));
    return;
  case KEY_TEXT:
    if (*((const char *)one + key->at) != '\0')
      (void)fprintf(to, "    %s: %s\n", key->name, (const char *)one + key->at);
    return;
  case KEY_SEED:
    (void)fprintf(to, "    %s: 0x%" PRIx64 "\n", key->name, one->seed);
    return;
  case KEY_LENGTHS:
    if (strcmp(key->name, "kv_len") == 0)
      put_lengths(to, key->name, one->kv_len, one->batch);
    else if (one->mode == MODE_CHUNKED || one->mode == MODE_MIXED)
      put_lengths(to, key->name, one->new_len, one->batch);
    return;
  case KEY_SHARE:
    put_shares(to, one);
    return;
  }
}

void shrink_yaml(FILE *to, const shrink_outcome *outcome, const char *plugin) {
  const assay_case *one = &outcome->smallest;
  char text[400];
  (void)snprintf(text, sizeof text, "%s %s/%s on %s: %s", verdict_name(outcome->result.verdict), one->op->name,
                 one->variant, one->device, outcome->result.check);
  put_comment(to, text);
  put_comment(to, outcome->result.message);
  (void)snprintf(text, sizeof text, "explained by: %s", outcome->result.explanation);
  if (outcome->result.explanation[0] != '\0') put_comment(to, text);
  put_comment(to, outcome->difference);
  (void)fputs("# ", to);
  put_run(to, one, plugin, "THIS_FILE");
  (void)fprintf(to, "op: %s\n%s:\n  - name: %s\n", one->op->name, section_name(one->section),
                one->name[0] != '\0' ? one->name : "smallest");
  const int32_t count = key_count(one->op);
  for (int32_t i = 0; i < count; ++i) {
    const case_key key = key_at(one->op, i);
    put_key(to, one, &key);
  }
}

void shrink_name(const assay_case *one, const char *check, char *text, size_t size) {
  enum { LONGEST = 47 }; /* longest name of a suite */
  const int rest = LONGEST - 4 - (int)strlen(one->op->name) - (int)strlen(check);
  (void)snprintf(text, size, "%s-%.*s-%s", one->op->name, rest > 4 ? rest : 4, one->variant, check);
  for (char *at = text; *at != '\0'; ++at)
    if (!isalnum((unsigned char)*at) && *at != '-') *at = '_';
}
