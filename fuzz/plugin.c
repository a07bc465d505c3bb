/* plugin.c: what may come through the door of plug-ins. First byte odd: the rest is the file that is loaded. Even:
 * a true shared object (plugin_table.c) whose table is made of the rest: wrong numbers, missing names, doubled rows.
 * Its last row is always wrong, so that it is refused, and it must say why: what was taken would stay. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "assay/plugin.h"
#include "core/registry.h"
#include "target.h"

enum { MAX_ROWS = 6 };

static assay_status refuse(const assay_call *call, assay_error *error) {
  (void)call;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "nothing");
}
static assay_status no_workspace(const assay_call *call, int64_t *bytes, assay_error *error) {
  (void)call;
  (void)error;
  *bytes = 0;
  return ASSAY_OK;
}
static assay_status no_launch(const assay_call *call, assay_env *env, assay_error *error) {
  (void)env;
  return refuse(call, error);
}

static const uint8_t *at;
static size_t left;

static unsigned take(void) {
  if (left == 0) return 0;
  --left;
  return *at++;
}

/* NULL, a good word, or what the bytes say. */
static const char *word(const char *good, char *room, size_t size) {
  const unsigned kind = take();
  if (kind % 4 == 0) return good;
  if (kind % 4 == 1) return NULL;
  size_t length = take() % size;
  for (size_t i = 0; i < length; ++i)
    room[i] = (char)take();
  room[length] = '\0';
  return room;
}

static void one_table(void) {
  static assay_variant row[MAX_ROWS];
  static char text[MAX_ROWS][4][100];
  static assay_plugin_table table;
  char pointer[32];
  assay_error error = {""};
  table = (assay_plugin_table){ASSAY_ABI + take() % 2, (uint32_t)sizeof table + take() % 2, "fuzz", row, 0};
  const unsigned rows = take();
  table.variant_count = rows == 255 ? INT32_MAX : rows == 254 ? INT32_MIN : (int32_t)(rows % (MAX_ROWS + 1));
  if (take() % 16 == 15) table.variants = NULL;
  for (int i = 0; i < MAX_ROWS; ++i) {
    memset(&row[i], 0, sizeof row[i]);
    row[i].struct_size = (uint32_t)sizeof row[i] + (take() % 16 == 15);
    row[i].op = word(assay_op_at(0)->name, text[i][0], sizeof text[i][0]);
    row[i].name = word("name", text[i][1], sizeof text[i][1]);
    row[i].device = word("simt", text[i][2], sizeof text[i][2]);
    row[i].claims = word("f32|same|nhd|decode", text[i][3], sizeof text[i][3]);
    row[i].supports = take() % 16 == 15 ? NULL : refuse;
    row[i].workspace = take() % 16 == 15 ? NULL : no_workspace;
    row[i].launch = take() % 16 == 15 ? NULL : no_launch;
  }
  if (table.variant_count >= 1 && table.variant_count <= MAX_ROWS) row[table.variant_count - 1].struct_size = 1;
  (void)snprintf(pointer, sizeof pointer, "%p", (void *)&table);
  (void)setenv("ASSAY_FUZZ_TABLE", pointer, 1);
  const int32_t before = assay_variant_count();
  const assay_status status = assay_plugin_load(ASSAY_FUZZ_PLUGIN, &error);
  if (status == ASSAY_OK || assay_variant_count() != before) fuzz_found("rows of a wrong table were taken", error.text);
  if (error.text[0] == '\0') fuzz_found("refused without a reason", "");
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
  assay_error error = {""};
  if (count == 0) return 0;
  if (bytes[0] % 2 != 0) {
    if (assay_plugin_load(fuzz_file("garbage.so", bytes + 1, count - 1), &error) == ASSAY_OK)
      fuzz_found("taken", "a file of garbage");
    if (error.text[0] == '\0') fuzz_found("refused without a reason", "");
    return 0;
  }
  at = bytes + 1;
  left = count - 1;
  one_table();
  return 0;
}
