/* yaml_test.c: what a document may not be, with line and column. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conformance/text/yaml.h"
#include "suite_fixture.h"

typedef struct bad_file {
  const char *bytes;
  long size;           /* -1: up to the NUL */
  const char *message; /* follows the path */
} bad_file;

static const bad_file bad_files[] = {
    {"", 0, ":1:1: found no document, allowed one"},
    {"# nothing\n", -1, ":1:1: found no document, allowed one"},
    {"a: 1\nb: &x 2\n", -1, ":2:4: found an anchor, allowed plain values (write it out)"},
    {"a: 1\nb: *x\n", -1, ":2:4: found an alias, allowed plain values (write it out)"},
    {"a: 1\nb: !!int 2\n", -1, ":2:4: found a tag, allowed untagged values"},
    {"a: 1\nb: !mine [1]\n", -1, ":2:4: found a tag, allowed untagged values"},
    {"%TAG !e! tag:x,2000:\n---\na: 1\n", -1, ":1:1: found a tag directive, allowed untagged values"},
    {"a: 1\n---\nb: 1\n", -1, ":2:1: found a second document, allowed one"},
    {"a: 1\nb: \xff\n", -1, ":2:4: found byte 0xff, allowed UTF-8"},
    {"a: \xc3\xa9 \xc0\xaf\n", -1, ":1:6: found byte 0xc0, allowed UTF-8"},
    {"a: \xed\xa0\x80\n", -1, ":1:4: found byte 0xed, allowed UTF-8"},
    {"a: \xe2\x82", -1, ":1:4: found byte 0xe2, allowed UTF-8"},
    {"a: 1\r\nb: \xf8\n", -1, ":2:4: found byte 0xf8, allowed UTF-8"},
    {"a: 1\nb: \0 2\n", 11, ":2:4: found control character U+0000, allowed text"},
    {"a: \x1b[0m\n", -1, ":1:4: found control character U+001B, allowed text"},
    {"a: \"x\\0y\"\n", -1, ":1:4: found a NUL character, allowed text"},
    {"\xff\xfe"
     "a\0:\0",
     6, ":1:1: found byte 0xff, allowed UTF-8"},
    {"a: [[[[[[[[1]]]]]]]]\n", -1, ":1:11: found more than 8 levels, allowed 8"},
    {"a: [1, 2\nb: 3\n", -1, ":2:2: not YAML: did not find expected ',' or ']', while parsing a flow sequence"},
    {"a: 1\n b: 2\n", -1, ":2:3: not YAML: mapping values are not allowed in this context"},
    {"a: 'x\n", -1, ":2:1: not YAML: found unexpected end of stream, while scanning a quoted scalar"},
    {"[a, b]: 1\n", -1, ":1:1: found a list as a key, allowed a word"},
    {"a:\n  ? {b: 1}\n  : 1\n", -1, ":2:5: found a map as a key, allowed a word"},
    {"length: 1\nname: x\nlength: 3\n", -1, ":3:1: length: found twice, allowed once"},
    {"a:\n  - {b: 1, c: 2, 'b': 3}\n", -1, ":2:18: b: found twice, allowed once"},
    {"\ta: 1\n", -1, ":1:1: not YAML: found character that cannot start any token, while scanning for the next token"},
};

static void expect_refusal(const char *path, assay_status expected, const char *message) {
  assay_error error = {""};
  yaml_file *file = NULL;
  const assay_status status = yaml_open(path, &file, &error);
  cr_expect(status == expected, "%s: status %d", message, (int)status);
  cr_expect(file == NULL);
  cr_expect(strncmp(error.text, path, strlen(path)) == 0 && strcmp(error.text + strlen(path), message) == 0,
            "\n  got      %s\n  expected %s", error.text, message);
  yaml_close(file);
}

Test(yaml, refuses_with_line_and_column) {
  for (size_t i = 0; i < sizeof bad_files / sizeof bad_files[0]; ++i)
    expect_refusal(suite_fixture_write("bad.yaml", bad_files[i].bytes, bad_files[i].size), ASSAY_ERR_INPUT,
                   bad_files[i].message);
}

Test(yaml, refuses_what_is_no_file) {
  char path[300];
  const char *folder = suite_fixture_folder();
  (void)snprintf(path, sizeof path, "%smissing.yaml", folder);
  expect_refusal(path, ASSAY_ERR_INPUT, ": cannot be read: No such file or directory");
  (void)snprintf(path, sizeof path, "%sfolder.yaml", folder);
  cr_assert(mkdir(path, 0700) == 0);
  expect_refusal(path, ASSAY_ERR_INPUT, ": found a folder, allowed a regular file");
  (void)snprintf(path, sizeof path, "%spipe.yaml", folder);
  cr_assert(mkfifo(path, 0600) == 0);
  expect_refusal(path, ASSAY_ERR_INPUT, ": found a pipe, allowed a regular file");
}

Test(yaml, refuses_fifty_megabytes_unread) {
  const char *path = suite_fixture_write("big.yaml", "a: 1\n", -1);
  cr_assert(truncate(path, 50L * 1000 * 1000) == 0);
  expect_refusal(path, ASSAY_ERR_INPUT, ": found 50000000 bytes, allowed at most 1048576");
  cr_assert(truncate(path, YAML_MAX_BYTES + 1) == 0);
  expect_refusal(path, ASSAY_ERR_INPUT, ": found 1048577 bytes, allowed at most 1048576");
  cr_assert(unlink(path) == 0);
}

/* A megabyte of brackets, of aliases, of one key: an answer soon. */
Test(yaml, survives_a_hostile_megabyte, .timeout = 20) {
  static const char *const pieces[] = {"[", "{a: ", "- ", "*a ", "a: 1\n", "? ", "\"", "- a\n", "#", "&a ", "|\n "};
  char *bytes = malloc(YAML_MAX_BYTES);
  cr_assert(bytes != NULL);
  for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; ++i) {
    const size_t n = strlen(pieces[i]);
    for (size_t at = 0; at < YAML_MAX_BYTES; ++at)
      bytes[at] = pieces[i][at % n];
    assay_error error = {""};
    yaml_file *file = NULL;
    if (yaml_open(suite_fixture_write("hostile.yaml", bytes, YAML_MAX_BYTES), &file, &error) == ASSAY_OK) {
      static const yaml_field fields[] = {{"a", NODE_SCALAR, false, NULL, NULL}};
      cr_assert(yaml_walk(yaml_root(file), fields, 1, NULL, &error) != ASSAY_OK || yaml_count(yaml_root(file)) == 1);
    } else {
      cr_assert(error.text[0] != '\0');
    }
    yaml_close(file);
  }
  free(bytes);
}

/* ---- the walk --------------------------------------------------------------------------------------------- */

static assay_status append_text(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  char *text = context;
  (void)error;
  strncat(text, field->key, 100);
  strncat(text, yaml_kind(value) == NODE_SCALAR ? yaml_text(value) : "*", 100);
  return ASSAY_OK;
}

static const yaml_field walk_fields[] = {{"name", NODE_SCALAR, true, append_text, NULL},
                                         {"length", NODE_SCALAR | NODE_LIST, false, append_text, NULL},
                                         {"map", NODE_MAP, false, append_text, NULL}};

static void expect_walk(const char *text, const char *message) {
  char taken[400] = "";
  assay_error error = {""};
  yaml_file *file = NULL;
  const char *path = suite_fixture_write("walk.yaml", text, -1);
  cr_assert(yaml_open(path, &file, &error) == ASSAY_OK, "%s", error.text);
  const assay_status status = yaml_walk(yaml_root(file), walk_fields, 3, taken, &error);
  cr_expect((status == ASSAY_OK) == (message == NULL));
  if (message != NULL)
    cr_expect(strcmp(error.text + strlen(path), message) == 0, "\n  got      %s\n  expected %s", error.text, message);
  if (message != NULL) cr_expect(taken[0] == '\0', "%s was taken before the error", taken);
  yaml_close(file);
}

Test(yaml, walks_by_the_table) {
  expect_walk("name: x\n", NULL);
  expect_walk("{map: {a: b}, length: [1], name: 'x'}", NULL);
  expect_walk("name: x\nlenght: 3\n",
              ":2:1: lenght: found an unknown key (nearest: length), allowed are name, length, map");
  expect_walk("name: x\nzebra: 3\n", ":2:1: zebra: found an unknown key, allowed are name, length, map");
  expect_walk("name: [x]\n", ":1:7: name: found a list, allowed a value");
  expect_walk("name: x\nmap: 3\n", ":2:6: map: found a value, allowed a map");
  expect_walk("name: x\nlength: {a: 1}\n", ":2:9: length: found a map, allowed a value or a list");
  expect_walk("# first\n  \nlength: 1\n", ":3:1: name: missing");
  expect_walk("- name\n", ":1:1: found a list, allowed a map");
  expect_walk("name: \xc3\xa4\xc3\xb6\nd\xc3\xa4: 1\n",
              ":2:1: d\xc3\xa4: found an unknown key, allowed are name, length, map");
  expect_walk("{name: \xc3\xa4\xc3\xb6, b: 1}\n", ":1:12: b: found an unknown key, allowed are name, length, map");
}

Test(yaml, knows_quoted_from_plain) {
  assay_error error = {""};
  yaml_file *file = NULL;
  cr_assert(yaml_open(suite_fixture_write("q.yaml", "[3, '3', \"3\"]", -1), &file, &error) == ASSAY_OK);
  const yaml_node list = yaml_root(file);
  cr_assert(yaml_count(list) == 3);
  cr_assert(yaml_is_plain(yaml_item(list, 0)) && !yaml_is_plain(yaml_item(list, 1)) &&
            !yaml_is_plain(yaml_item(list, 2)));
  yaml_close(file);
}
