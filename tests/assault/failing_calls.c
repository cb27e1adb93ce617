/* Makes the n-th system call of a kind fail, in the process that loads it and, if asked, its children.
 *
 * FAIL_CALL   open, write, fsync, rename, mkdir, mmap, fork or connect
 * FAIL_NUMBER which of these calls fails, from 1
 * FAIL_ERRNO  the error; 0: a write that writes one byte
 * FAIL_UNDER  only calls on files whose path begins with this are counted; empty: all
 * FAIL_IN     the id of the only process in which calls are counted; 0: each process counts its own
 * FAIL_LOG    a file to which the failing call is written
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static long count;
static int busy;

static int is_under(const char *path) {
    const char *under = getenv("FAIL_UNDER");
    return !under || !*under || (path && strncmp(path, under, strlen(under)) == 0);
}

static int file_is_under(int fd) {
    const char *under = getenv("FAIL_UNDER");
    char link[64], path[PATH_MAX];
    if (!under || !*under) return 1;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = syscall(SYS_readlink, link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return is_under(path);
}

/* Whether this call is to fail; errno is set then. */
static int fails(const char *call, int counts) {
    const char *wanted = getenv("FAIL_CALL"), *only = getenv("FAIL_IN"), *log = getenv("FAIL_LOG");
    if (!counts || busy || !wanted || strcmp(wanted, call)) return 0;
    if (only && atol(only) && atol(only) != (long)syscall(SYS_getpid)) return 0;
    if (__sync_add_and_fetch(&count, 1) != atol(getenv("FAIL_NUMBER"))) return 0;
    if (log) {
        int fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND, 0666);
        if (fd >= 0) { syscall(SYS_write, fd, "x", 1); syscall(SYS_close, fd); }
    }
    errno = atoi(getenv("FAIL_ERRNO"));
    return 1;
}

#define REAL(name) static __typeof__(name) *real; if (!real) { busy = 1; real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name); busy = 0; }
#define MODE va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more);

int open(const char *path, int flags, ...) { MODE REAL(open) if (fails("open", is_under(path))) return -1; return real(path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE REAL(open64) if (fails("open", is_under(path))) return -1; return real(path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE REAL(openat) if (fails("open", is_under(path))) return -1; return real(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE REAL(openat64) if (fails("open", is_under(path))) return -1; return real(at, path, flags, mode); }

static ssize_t short_or(ssize_t size, int fd, const void *data) {
    if (errno) return -1;
    return size ? syscall(SYS_write, fd, data, 1) : 0;
}
ssize_t write(int fd, const void *data, size_t size) { REAL(write) if (fails("write", file_is_under(fd))) return short_or(size, fd, data); return real(fd, data, size); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { REAL(pwrite) if (fails("write", file_is_under(fd))) { if (errno) return -1; return real(fd, data, 1, at); } return real(fd, data, size, at); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) { REAL(pwrite64) if (fails("write", file_is_under(fd))) { if (errno) return -1; return real(fd, data, 1, at); } return real(fd, data, size, at); }
int fsync(int fd) { REAL(fsync) if (fails("fsync", file_is_under(fd)) && errno) return -1; return real(fd); }
int fdatasync(int fd) { REAL(fdatasync) if (fails("fsync", file_is_under(fd)) && errno) return -1; return real(fd); }
int rename(const char *from, const char *to) { REAL(rename) if (fails("rename", is_under(to)) && errno) return -1; return real(from, to); }
int renameat(int a, const char *from, int b, const char *to) { REAL(renameat) if (fails("rename", is_under(to)) && errno) return -1; return real(a, from, b, to); }
int mkdir(const char *path, mode_t mode) { REAL(mkdir) if (fails("mkdir", is_under(path)) && errno) return -1; return real(path, mode); }
int mkdirat(int at, const char *path, mode_t mode) { REAL(mkdirat) if (fails("mkdir", is_under(path)) && errno) return -1; return real(at, path, mode); }
void *mmap(void *at, size_t size, int prot, int flags, int fd, off_t from) { REAL(mmap) if (fails("mmap", fd >= 0 && file_is_under(fd)) && errno) return MAP_FAILED; return real(at, size, prot, flags, fd, from); }
void *mmap64(void *at, size_t size, int prot, int flags, int fd, off64_t from) { REAL(mmap64) if (fails("mmap", fd >= 0 && file_is_under(fd)) && errno) return MAP_FAILED; return real(at, size, prot, flags, fd, from); }
pid_t fork(void) { REAL(fork) if (fails("fork", 1) && errno) return -1; return real(); }
pid_t vfork(void) { REAL(fork) if (fails("fork", 1) && errno) return -1; return real(); }
int connect(int fd, const struct sockaddr *to, socklen_t size) { REAL(connect) if (fails("connect", 1) && errno) return -1; return real(fd, to, size); }
