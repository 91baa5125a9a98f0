/* The keeper: tidies up when its supervisor died without doing so.
 *
 *   keeper DIRECTORY GROUP...
 *
 * Waits for the end of file on CONTROL_FD, a pipe whose other end only the supervisor holds.
 * Then it kills every process in the cgroups below each GROUP, removes these cgroups and
 * the owner's DIRECTORY, and exits. After an orderly end nothing of them is left and it
 * has nothing to do. bubblewrap's --die-with-parent does not cover a box that was killed
 * while it was being set up; this does. Whatever it does is idempotent and bounded in time,
 * and the next owner on this host would do the same.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "protocol.h"

enum { PASSES = 1000, PAUSE_US = 10000 };

/* Version 2 kills all of a group at once, also what is being forked. */
static int kill_group(const char *group) {
    char path[4300];
    snprintf(path, sizeof path, "%s/cgroup.kill", group);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    int killed = write(fd, "1", 1) == 1;
    close(fd);
    return killed;
}

static void kill_members(const char *group) {
    char path[4300];
    int pid;
    if (kill_group(group)) return;
    snprintf(path, sizeof path, "%s/cgroup.procs", group);
    FILE *members = fopen(path, "re");
    if (!members) return;
    while (fscanf(members, "%d", &pid) == 1)
        if (pid > 1) kill(pid, SIGKILL); /* 0 is a process outside our pid namespace */
    fclose(members);
}

static int is_gone(const char *group) { return rmdir(group) == 0 || errno == ENOENT; }

/* Kills and removes all boxes below one parent group; 1 when nothing is left. */
static int sweep(const char *parent) {
    char group[4200];
    DIR *directory = opendir(parent);
    if (!directory) return 1;
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (entry->d_type != DT_DIR || entry->d_name[0] == '.') continue;
        snprintf(group, sizeof group, "%s/%s", parent, entry->d_name);
        if (!is_gone(group)) kill_members(group);
    }
    closedir(directory);
    return is_gone(parent);
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *at) {
    (void)status, (void)kind, (void)at;
    remove(path);
    return 0;
}

int keeper_main(int argc, char **argv) {
    char ignored;
    setsid();
    for (int number = 1; number < NSIG; number++) signal(number, SIG_IGN);
    if (argc < 1 || chdir("/") < 0) return 2;
    while (read(CONTROL_FD, &ignored, 1) > 0 || errno == EINTR) errno = 0;
    int left = 1;
    for (int pass = 0; left && pass < PASSES; pass++) {
        left = 0;
        for (int i = 1; i < argc; i++) left += !sweep(argv[i]);
        if (left) usleep(PAUSE_US);
    }
    if (!left) nftw(argv[0], remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
    return left != 0;
}
