/* Owners of files as a box is to see them: user namespaces as maps, and mounts through them.
 *
 * A user namespace is made empty and owned by the box's first uid, so that this uid, and
 * nobody else but root, may enter it; root writes its maps. Its process is gone before the
 * namespace is used: a descriptor keeps it. No namespace can be made inside it, whatever a box
 * does: its own max_user_namespaces is 0.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/securebits.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch.h"

/* Headers may be older than the kernel; these numbers are the same on every architecture. */
enum { OPEN_TREE = 428, MOVE_MOUNT = 429, MOUNT_SETATTR = 442 };
enum { CLONE_TREE = 1, FROM_EMPTY_PATH = 4, TO_EMPTY_PATH = 0x40, NO_PATH = 0x1000,
       MAP_OWNERS = 0x00100000 };

struct mount_attributes {
    uint64_t set, clear, propagation, userns_fd;
};

/* INSIDE:HOST:COUNT,... as the kernel takes it. */
static void translate_map(const char *map, uid_t first, char *text, size_t size) {
    size_t length = 0;
    for (const char *at = map; *at;) {
        unsigned long inside, host, count;
        char plus[2] = "";
        int taken = 0;
        if (sscanf(at, "%lu:%1[+]%lu:%lu%n", &inside, plus, &host, &count, &taken) != 4 &&
            (plus[0] = 0, sscanf(at, "%lu:%lu:%lu%n", &inside, &host, &count, &taken) != 3)) {
            errno = EINVAL;
            fail("map %s", map);
        }
        if (plus[0]) host += first;
        length += snprintf(text + length, size - length, "%lu %lu %lu\n", inside, host, count);
        at += taken;
        if (length >= size || (*at && *at++ != ',')) {
            errno = EINVAL;
            fail("map %s", map);
        }
    }
}

static void write_map(pid_t pid, const char *name, const char *text) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) fail("write %s", path);
    close(fd);
}

/* The first and only process of the namespace: forbids others below it, and waits for the
 * launcher to go on or to end. */
static void hold_namespace(int launcher) {
    int fd = open("/proc/sys/user/max_user_namespaces", O_WRONLY | O_CLOEXEC);
    char locked = fd >= 0 && write(fd, "0", 1) == 1;
    if (write(launcher, &locked, 1) == 1) (void)!read(launcher, &locked, 1);
    _exit(0);
}

/* A process in a new user namespace that belongs to `owner`. The capabilities are kept
 * meanwhile: hosts may refuse user namespaces to those who have none. */
static pid_t clone_as(uid_t owner, int ends[2]) {
    if (prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP) < 0) fail("set securebits");
    if (setegid(owner) < 0 || seteuid(owner) < 0) fail("become %u", owner);
    pid_t pid = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
        close(ends[0]);
        hold_namespace(ends[1]);
    }
    if (pid < 0) fail("make a user namespace");
    if (seteuid(0) < 0 || setegid(0) < 0) fail("become root again");
    if (prctl(PR_SET_SECUREBITS, 0) < 0) fail("clear securebits");
    return pid;
}

int make_user_namespace(const char *map, uid_t first) {
    static char text[4096];
    char path[64], locked = 0;
    int ends[2];
    translate_map(map, first, text, sizeof text);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0) fail("socketpair");
    pid_t pid = clone_as(first, ends);
    close(ends[1]);
    write_map(pid, "uid_map", text);
    write_map(pid, "gid_map", text);
    snprintf(path, sizeof path, "/proc/%d/ns/user", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) fail("open %s", path);
    if (read(ends[0], &locked, 1) != 1 || !locked) {
        errno = EPERM;
        fail("forbid namespaces inside a user namespace (is /proc/sys read-only?)");
    }
    close(ends[0]);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) continue;
    return fd;
}

int clone_mount(const char *source, int map_fd, unsigned long flags) {
    struct mount_attributes wanted = {.set = flags | MAP_OWNERS, .userns_fd = map_fd};
    int fd = syscall(OPEN_TREE, AT_FDCWD, source, CLONE_TREE | O_CLOEXEC);
    if (fd < 0) return -1;
    if (syscall(MOUNT_SETATTR, fd, "", NO_PATH, &wanted, sizeof wanted) == 0) return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

void attach_mount(int mount_fd, int target_fd) {
    if (syscall(MOVE_MOUNT, mount_fd, "", target_fd, "", FROM_EMPTY_PATH | TO_EMPTY_PATH) < 0)
        fail("attach a mount");
    close(mount_fd);
}
