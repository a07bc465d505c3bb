/* tally.c: see tally.h. */
#include "tally.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/case/case.h"

void tally_reason(const char *message, char *text, size_t size) {
  size_t used = 0;
  bool word = false; /* the character before belongs to a word */
  for (const char *at = message; *at != '\0' && used + 1 < size;) {
    const bool number = isdigit((unsigned char)*at) && !word;
    word = isalnum((unsigned char)*at) || *at == '_';
    if (!number) {
      text[used++] = *at++;
      continue;
    }
    text[used++] = 'N';
    while (isdigit((unsigned char)*at) || (*at == '.' && isdigit((unsigned char)at[1])))
      ++at;
  }
  if (size > 0) text[used] = '\0';
}

static bool is_like(const tally_row *row, const assay_case *one, const case_result *result, const char *reason) {
  return row->op == one->op && row->verdict == result->verdict && strcmp(row->variant, one->variant) == 0 &&
         strcmp(row->device, one->device) == 0 && strcmp(row->check, result->check) == 0 &&
         strcmp(row->reason, reason) == 0;
}

void tally_place(const assay_case *one, char *text, size_t size) {
  (void)snprintf(text, size, "%s%s%s%s%s", one->suite, one->suite[0] != '\0' ? " " : "", section_name(one->section),
                 one->name[0] != '\0' ? "/" : "", one->name);
}

const tally_row *tally_add(tally *t, const assay_case *one, const case_result *result) {
  char reason[TALLY_REASON];
  if (result->verdict == VERDICT_UNSUPPORTED)
    tally_reason(result->message, reason, sizeof reason);
  else
    (void)snprintf(reason, sizeof reason, "%s", result->kind);
  for (int32_t i = 0; i < t->count; ++i)
    if (is_like(&t->row[i], one, result, reason)) {
      ++t->row[i].count;
      return &t->row[i];
    }
  if (t->count == t->room && (t->most == 0 || t->count < t->most)) {
    const int32_t room = t->room > 0 ? 2 * t->room : 32;
    tally_row *grown = realloc(t->row, (size_t)room * sizeof *grown);
    if (grown != NULL) {
      t->row = grown;
      t->room = room;
    }
  }
  if (t->count == t->room || (t->most > 0 && t->count >= t->most)) {
    ++t->over;
    return NULL;
  }
  tally_row *made = &t->row[t->count++];
  *made = (tally_row){.op = one->op, .verdict = result->verdict, .count = 1};
  (void)snprintf(made->variant, sizeof made->variant, "%s", one->variant);
  (void)snprintf(made->device, sizeof made->device, "%s", one->device);
  (void)snprintf(made->check, sizeof made->check, "%s", result->check);
  (void)snprintf(made->reason, sizeof made->reason, "%s", reason);
  tally_place(one, made->first, sizeof made->first);
  return made;
}

void tally_free(tally *t) {
  free(t->row);
  *t = (tally){.row = NULL};
}

void tally_sort(tally *t) {
  for (int32_t i = 1; i < t->count; ++i) {
    const tally_row moved = t->row[i];
    int32_t at = i;
    for (; at > 0 && t->row[at - 1].count < moved.count; --at)
      t->row[at] = t->row[at - 1];
    t->row[at] = moved;
  }
}
