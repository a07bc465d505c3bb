/* suite_fixture.c: files and operators for the tests of suites, cases and traces. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "suite_fixture.h"

#include <criterion/criterion.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conformance/case/keys.h"
#include "core/registry_add.h"

#define ASSAY_OP(stem) const assay_op *assay_op_##stem(void);
#include "assay/ops.def"
#undef ASSAY_OP

void suite_fixture_ops(void) {
  assay_error error = {""};
  if (assay_op_count() > 0) return;
  cr_assert(assay_registry_add_op(assay_op_gate_attention(), &error) == ASSAY_OK, "%s", error.text);
  cr_assert(assay_registry_add_op(assay_op_softmax_attention(), &error) == ASSAY_OK, "%s", error.text);
}

void suite_fixture_all_ops(void) {
  const assay_op *const all[] = {
#define ASSAY_OP(stem) assay_op_##stem(),
#include "assay/ops.def"
#undef ASSAY_OP
  };
  assay_error error = {""};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i)
    if (assay_op_find(all[i]->name) == NULL)
      cr_assert(assay_registry_add_op(all[i], &error) == ASSAY_OK, "%s", error.text);
}

const assay_op *suite_fixture_op(const char *name) {
  suite_fixture_ops();
  const assay_op *op = assay_op_find(name);
  cr_assert(op != NULL, "%s", name);
  return op;
}

/* ---- folders ----------------------------------------------------------------------------------------- */

enum { MOST_FOLDERS = 16 };
static char made_folders[MOST_FOLDERS][128];
static int folders;
static pid_t owner;

static int remove_one(const char *path, const struct stat *stat, int kind, struct FTW *where) {
  (void)stat, (void)kind, (void)where;
  return remove(path);
}

/* By the process that made them, not by those it has made. */
static void remove_folders(void) {
  for (int i = 0; i < folders && getpid() == owner; ++i)
    (void)nftw(made_folders[i], remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

const char *suite_fixture_folder(void) {
  static char folder[128];
  const char *base = getenv("TMPDIR");
  (void)snprintf(folder, sizeof folder, "%.80s/assay-test-XXXXXX", base != NULL && base[0] != '\0' ? base : "/tmp");
  cr_assert(mkdtemp(folder) != NULL, "%s", folder);
  if (folders == 0) cr_assert(atexit(remove_folders) == 0);
  owner = getpid();
  cr_assert(folders < MOST_FOLDERS);
  (void)strcpy(made_folders[folders++], folder);
  strncat(folder, "/", sizeof folder - strlen(folder) - 1);
  return folder;
}

const char *suite_fixture_write(const char *name, const void *bytes, long size) {
  static char path[256];
  static const char *folder = NULL;
  if (folder == NULL) folder = suite_fixture_folder();
  (void)snprintf(path, sizeof path, "%s%s", folder, name);
  FILE *file = fopen(path, "wb");
  cr_assert(file != NULL, "%s", path);
  const size_t count = size < 0 ? strlen(bytes) : (size_t)size;
  cr_assert(fwrite(bytes, 1, count, file) == count && fclose(file) == 0, "%s", path);
  return path;
}

static bool same_number(double a, double b) {
  return (a != a && b != b) || (!(a < b) && !(a > b) && a == a && b == b);
}

bool suite_fixture_same(const assay_case *a, const assay_case *b) {
  if (a->op != b->op || a->batch != b->batch || a->seed != b->seed) return false;
  if (strcmp(a->suite, b->suite) != 0 || strcmp(a->name, b->name) != 0 || strcmp(a->variant, b->variant) != 0 ||
      strcmp(a->device, b->device) != 0 || strcmp(a->expect, b->expect) != 0)
    return false;
  for (int32_t i = 0; i < key_count(a->op); ++i) {
    const case_key key = key_at(a->op, i);
    if (key.kind <= KEY_ENUM && !same_number(key_get(a, &key), key_get(b, &key))) return false;
  }
  for (int32_t i = 0; i < a->batch; ++i)
    if (a->kv_len[i] != b->kv_len[i] || a->new_len[i] != b->new_len[i] || a->share_with[i] != b->share_with[i] ||
        a->share_tokens[i] != b->share_tokens[i])
      return false;
  return true;
}
