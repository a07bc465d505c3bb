/* bench_peers.c: a script of bench/peers as a process. */
#include "bench_peers.h"

#include <errno.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/text/text.h"

enum { NO_PYTHON = 127 };

assay_status bench_peers_run(const char *script, const char *argument, bool *absent, bool *wrong, assay_error *error) {
  char path[4096];
  (void)snprintf(path, sizeof path, "%.3900s/peers/%.100s", folder_of_bench(), script);
  char *const words[] = {(char *)"python3", path, (char *)argument, NULL};
  int ended = 0;
  *absent = *wrong = false;
  (void)fflush(stdout);
  const pid_t pid = fork();
  if (pid < 0) return assay_fail(error, ASSAY_ERR_IO, "--peers: no process");
  if (pid == 0) {
    (void)execvp(words[0], words);
    _exit(NO_PYTHON);
  }
  while (waitpid(pid, &ended, 0) < 0 && errno == EINTR) {
  }
  *absent = WIFEXITED(ended) && WEXITSTATUS(ended) == NO_PYTHON;
  *wrong = !*absent && (!WIFEXITED(ended) || WEXITSTATUS(ended) != 0);
  if (*absent) (void)printf("peers: missing: python3\n");
  return ASSAY_OK;
}
