"""A library that has calls of the system fail, as on a file system that lacks them."""

import errno
import shutil
import subprocess

import pytest

# Preloaded, it has calls fail with the number in the variable of their name.
PRELOADED = """
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int refuse(const char *call) {
    errno = atoi(getenv(call));
    return -1;
}

int fsync(int descriptor) {
    struct stat status;
    if (getenv("FSYNC") && !fstat(descriptor, &status) && S_ISDIR(status.st_mode))
        return refuse("FSYNC");
    return syscall(SYS_fsync, descriptor);
}

int flock(int descriptor, int operation) {
    return getenv("FLOCK") ? refuse("FLOCK") : syscall(SYS_flock, descriptor, operation);
}
"""


def build(folder):
    """Compile the library; return a function of a call and an error's name: the environment."""
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler")
    source = folder / "refuse.c"
    source.write_text(PRELOADED)
    library = source.with_suffix(".so")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return lambda call, code: {"LD_PRELOAD": str(library), call: str(getattr(errno, code))}
