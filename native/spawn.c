/* How a command starts: the child between vfork and exec. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "init.h"

/* Looks argv[0] up in the PATH of the command's own environment, as a shell would. */
static int execute(const struct start *start) {
    const char *name = start->argv[0], *path = "";
    char candidate[8192];
    int error = ENOENT;
    if (strchr(name, '/')) {
        execve(name, start->argv, start->env);
        return errno;
    }
    for (char **entry = start->env; *entry; entry++)
        if (!strncmp(*entry, "PATH=", 5)) path = *entry + 5;
    while (*path && *name) {
        size_t length = strcspn(path, ":");
        snprintf(candidate, sizeof candidate, "%.*s/%s", (int)length, path, name);
        execve(candidate, start->argv, start->env);
        if (errno != ENOENT && errno != ENOTDIR) error = errno;
        path += length + (path[length] == ':');
    }
    return error;
}

static int place_fd(int fd, int target) {
    return fd == target ? fcntl(fd, F_SETFD, 0) : dup2(fd, target);
}

/* Both rows of numbers rise, so going the right way round none is overwritten before its turn. */
static int place_extra_fds(const struct start *start) {
    int first = start->first_extra_fd, last = start->num_extra - 1;
    int up = start->num_extra > 0 && first > start->extra[0];
    for (int i = 0; i <= last; i++) {
        int each = up ? last - i : i;
        if (place_fd(start->extra[each], first + each) < 0) return -1;
    }
    return 0;
}

static int take_terminal(const struct start *start) {
    const struct request *request = start->request;
    if (ioctl(0, TIOCSCTTY, 0) < 0) return -1;
    return request->flags & FLAG_USER ? fchown(0, request->uid, -1) : 0;
}

static int change_user(const struct start *start) {
    const struct request *request = start->request;
    if (syscall(SYS_setgroups, request->num_groups, start->groups) < 0) return -1;
    if (syscall(SYS_setresgid, request->gid, request->gid, request->gid) < 0) return -1;
    return syscall(SYS_setresuid, request->uid, request->uid, request->uid);
}

/* Runs in the vforked child: shares memory with PID 1 until exec, so it only makes calls. */
static int become(const struct start *start) {
    struct rlimit marker = {start->marker, start->marker};
    uint32_t flags = start->request->flags;
    sigset_t none;
    sigemptyset(&none);
    if (setsid() < 0 || setrlimit(RLIMIT_LOCKS, &marker) < 0) return errno;
    for (int i = 0; i < 3; i++)
        if (place_fd(start->fds[i], i) < 0) return errno;
    if (place_extra_fds(start) < 0) return errno;
    if (flags & FLAG_TERMINAL && take_terminal(start) < 0) return errno;
    if (flags & FLAG_USER && change_user(start) < 0) return errno;
    if (chdir(start->cwd) < 0) return errno;
    signal(SIGCHLD, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    return execute(start);
}

pid_t spawn(const struct start *start, int *start_errno) {
    volatile int error = 0;
    pid_t pid = vfork();
    if (pid == 0) {
        error = become(start);
        _exit(127);
    }
    *start_errno = pid < 0 ? errno : error;
    return pid;
}
