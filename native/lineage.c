/* Which processes belong to a command, and their end: see init.c for the rules. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "init.h"

enum { KILL_DEADLINE_MS = 1500 };

static ssize_t read_proc(pid_t pid, const char *file, char *text, size_t size) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t length = read(fd, text, size - 1);
    close(fd);
    text[length > 0 ? length : 0] = 0;
    return length;
}

struct process {
    pid_t parent; /* 0 when it is outside: a zygote's fork */
    pid_t session;
    int dead;
};

/* Returns 0, or -1 when there is no such process. */
static int look_at(pid_t pid, struct process *process) {
    char text[512], state;
    if (read_proc(pid, "stat", text, sizeof text) <= 0) return -1;
    char *after_name = strrchr(text, ')');
    if (!after_name || sscanf(after_name, ") %c %d %*d %d", &state, &process->parent,
                              &process->session) != 3)
        return -1;
    process->dead = state == 'Z' || state == 'X';
    return 0;
}

/* Its marker. The kernel tells it about processes of other users only in this file. */
static int marker_of(pid_t pid, rlim_t *marker) {
    struct rlimit limits;
    unsigned long long soft, hard;
    char text[2048];
    if (prlimit(pid, RLIMIT_LOCKS, NULL, &limits) == 0) {
        *marker = limits.rlim_max;
        return 0;
    }
    if (errno != EPERM || read_proc(pid, "limits", text, sizeof text) <= 0) return -1;
    char *line = strstr(text, "Max file locks");
    if (!line || sscanf(line, "Max file locks %llu %llu", &soft, &hard) != 2) return -1;
    *marker = hard;
    return 0;
}

static int belongs(pid_t pid, const struct target *target) {
    rlim_t marker;
    struct process process, ancestor = {0};
    if (look_at(pid, &process) < 0 || process.dead || marker_of(pid, &marker) < 0) return 0;
    if (target->session && process.session != target->session) return 0;
    if (target->in_shell && (pid == target->leader || marker > target->marker)) return 0;
    for (pid_t each = pid; each > 1; each = ancestor.parent) {
        if (target->leader && each == target->leader) return 1;
        if (find_by_leader(each)) return 0;
        if (look_at(each, &ancestor) < 0) break;
    }
    return marker <= target->marker;
}

int signal_target(const struct target *target, int number) {
    int found = 0;
    DIR *proc = opendir("/proc");
    if (!proc) return 1;
    for (struct dirent *entry; (entry = readdir(proc));) {
        pid_t pid = atoi(entry->d_name);
        if (pid <= 1 || !belongs(pid, target)) continue;
        found++;
        kill(pid, number);
    }
    closedir(proc);
    return found;
}

void kill_everything(void) {
    kill(-1, SIGKILL);
    while (reap(0)) continue;
}

static long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void kill_lineage(const struct target *target) {
    long deadline_ms = now_ms() + KILL_DEADLINE_MS;
    while (signal_target(target, SIGKILL) > 0) {
        while (reap(WNOHANG)) continue;
        if (now_ms() > deadline_ms) return kill_everything();
        usleep(200);
    }
    while (reap(WNOHANG)) continue;
}
