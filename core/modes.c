/* modes.c: numeric modes and locale around every call of a launcher. */
#define _POSIX_C_SOURCE 200809L
#include "core/modes.h"

#include <fenv.h>
#include <locale.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char noted[200];

/* ---- the registers ----------------------------------------------------------------------------------- */

/* The control bits, without the flags that arithmetic raises: of MXCSR and x87, or of FPCR. */
typedef struct control {
  uint32_t vector, scalar;
} control;

#if defined(__x86_64__) && defined(__GLIBC__)
static const control usual = {0x1F80, 0x33F};

static control control_now(void) {
  fenv_t now;
  (void)fegetenv(&now);
  return (control){now.__mxcsr & ~0x3Fu, now.__control_word & 0xF3Fu};
}

static void control_text(control c, char *text, size_t size) {
  const char *const what = (c.vector & 0x8040u) != 0                          ? "subnormal numbers are 0 (FTZ, DAZ)"
                           : (c.vector & 0x6000u) != (usual.vector & 0x6000u) ? "rounding is not to nearest"
                           : c.vector != usual.vector                         ? "arithmetic traps"
                                                                              : "x87 rounds otherwise, or traps";
  (void)snprintf(text, size, "%s (MXCSR 0x%X, x87 0x%X)", what, c.vector, c.scalar);
}
#elif defined(__aarch64__) && defined(__GLIBC__)
static const control usual = {0, 0};

static control control_now(void) {
  fenv_t now;
  (void)fegetenv(&now);
  return (control){now.__fpcr, 0};
}

static void control_text(control c, char *text, size_t size) {
  (void)snprintf(text, size, "rounding, subnormal numbers or traps are others (FPCR 0x%X)", c.vector);
}
#else
static const control usual = {FE_TONEAREST, 0};

static control control_now(void) {
  return (control){(uint32_t)fegetround(), 0};
}

static void control_text(control c, char *text, size_t size) {
  (void)snprintf(text, size, "rounding is not to nearest (mode %u)", c.vector);
}
#endif

/* ---- both ends of a call ----------------------------------------------------------------------------- */

void modes_set(void) {
  (void)fesetenv(FE_DFL_ENV);
  if (uselocale((locale_t)0) != LC_GLOBAL_LOCALE) (void)uselocale(LC_GLOBAL_LOCALE);
  const char *name = setlocale(LC_ALL, NULL);
  if (name == NULL || strcmp(name, "C") != 0) (void)setlocale(LC_ALL, "C");
}

bool modes_changed(char *text, size_t size) {
  const control now = control_now();
  const char *name = setlocale(LC_ALL, NULL);
  const bool numbers = now.vector != usual.vector || now.scalar != usual.scalar;
  const bool thread = uselocale((locale_t)0) != LC_GLOBAL_LOCALE, process = name == NULL || strcmp(name, "C") != 0;
  if (!numbers && !thread && !process) return false;
  if (numbers)
    control_text(now, text, size);
  else
    (void)snprintf(text, size, "the locale is %.100s", thread ? "one of the thread" : name != NULL ? name : "unknown");
  modes_set();
  return true;
}

const char *modes_noted(void) {
  return noted[0] != '\0' ? noted : NULL;
}

void modes_forget(void) {
  noted[0] = '\0';
}

void modes_note(const char *what, const char *text) {
  if (noted[0] == '\0') (void)snprintf(noted, sizeof noted, "%s: %s", what, text);
}
