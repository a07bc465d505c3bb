/* files_fixture.c: a folder below /tmp. */
#include "files_fixture.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[64];

static void need(bool good, const char *what) {
  if (good) return;
  (void)fprintf(stderr, "files_fixture: %s\n", what);
  abort();
}

const char *files_folder(void) {
  if (folder[0] == '\0') {
    (void)snprintf(folder, sizeof folder, "/tmp/assay-files-XXXXXX");
    need(mkdtemp(folder) != NULL, "no folder");
  }
  return folder;
}

void files_gone(void) {
  if (folder[0] == '\0') return;
  DIR *open = opendir(folder);
  for (struct dirent *entry; open != NULL && (entry = readdir(open)) != NULL;)
    if (entry->d_name[0] != '.') (void)unlink(files_path(entry->d_name));
  if (open != NULL) (void)closedir(open);
  (void)rmdir(folder);
  folder[0] = '\0';
}

const char *files_path(const char *name) {
  static char path[8][400];
  static int next;
  next = (next + 1) % 8;
  (void)snprintf(path[next], sizeof path[next], "%s/%s", files_folder(), name);
  return path[next];
}

test_bytes files_read(const char *path) {
  test_bytes b = {NULL, 0};
  FILE *file = fopen(path, "rb");
  need(file != NULL && fseek(file, 0, SEEK_END) == 0, path);
  b.size = (size_t)ftell(file);
  rewind(file);
  b.at = malloc(b.size + 1);
  need(b.at != NULL && fread(b.at, 1, b.size, file) == b.size, path);
  b.at[b.size] = 0;
  (void)fclose(file);
  return b;
}

const char *files_put(const char *name, const void *bytes, size_t size) {
  const char *path = files_path(name);
  FILE *file = fopen(path, "wb");
  need(file != NULL && fwrite(bytes, 1, size, file) == size && fclose(file) == 0, path);
  return path;
}

const char *files_copy(const char *from, const char *name) {
  test_bytes b = files_read(from);
  const char *path = files_put(name, b.at, b.size);
  files_free(&b);
  return path;
}

bool files_replace(test_bytes *text, const char *old, const char *fresh) {
  char *found = strstr((char *)text->at, old);
  if (found == NULL) return false;
  const size_t before = (size_t)(found - (char *)text->at), was = strlen(old), is = strlen(fresh);
  unsigned char *changed = malloc(text->size - was + is + 1);
  need(changed != NULL, "out of memory");
  memcpy(changed, text->at, before);
  memcpy(changed + before, fresh, is);
  memcpy(changed + before + is, text->at + before + was, text->size - before - was + 1);
  free(text->at);
  *text = (test_bytes){changed, text->size - was + is};
  return true;
}

void files_free(test_bytes *b) {
  free(b->at);
  *b = (test_bytes){NULL, 0};
}

void output_open(test_output *o) {
  *o = (test_output){NULL, NULL, 0};
  o->stream = open_memstream(&o->text, &o->size);
  need(o->stream != NULL, "out of memory");
}

void output_close(test_output *o) {
  (void)fclose(o->stream);
}

void output_free(test_output *o) {
  free(o->text);
  o->text = NULL;
}
