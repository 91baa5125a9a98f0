/* The launcher: from the supervisor's root process to bubblewrap as a nobody.
 *
 * Theory of operation. Options are carried out in the order in which they stand, so the
 * supervisor writes the plan and this file only knows single steps:
 *
 *   --group DIR               make a cgroup (first, so that everything below is limited)
 *   --set FILE VALUE          write one of its settings
 *   --join DIR                become a member of it
 *   --nofile N                descriptors
 *   --tmpfs DIR BYTES INODES  new mount namespace with a tmpfs on DIR: the one writable file
 *                             system of the box, which carries both quotas; DIR/root becomes
 *                             the tree
 *   --overlay LOWERS          image layers below a writable layer on that tmpfs
 *   --dir MODE PATH           directory owned by root; parents are made too
 *   --own MODE PATH           directory owned by the box's user
 *   --file PATH TEXT          small file owned by root
 *   --link TARGET PATH        symbolic link
 *   --ro SRC PATH             read-only bind mount, no devices, no setuid
 *   --devices SRC PATH        the same, but device nodes work
 *   --shm PATH                shared memory directory, on the same tmpfs
 *   --devpts PATH             private pseudo-terminals
 *   --open PATH               inherited as the next descriptor after CONTROL_FD
 *   --env NAME=VALUE          instead of an empty environment
 *   --uid N                   the unprivileged uid and gid of the box
 *   --enter                   make the tree the root and stay root (zygotes only)
 *
 * PATHs are relative to the tree. The tree is built as root because the sources may lie
 * where nobody else may look; nothing in it comes from a box that ran before.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "protocol.h"

static char disk[4096], tree[4104];
static uid_t box_uid;
static int next_fd = CONTROL_FD + 1;
static char *environment[32];
static int stays_root;

static void fail(const char *format, ...) {
    int error = errno;
    va_list args;
    va_start(args, format);
    fputs("trialyard-box: ", stderr);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, ": %s\n", strerror(error));
    _exit(125);
}

static const char *in_tree(const char *path) {
    static char joined[2][8192];
    static int turn;
    turn = !turn;
    if (snprintf(joined[turn], sizeof joined[turn], "%s/%s", tree, path) >= (int)sizeof joined[0]) {
        errno = ENAMETOOLONG;
        fail("%s", path);
    }
    return joined[turn];
}

static unsigned long long number(const char *text) {
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno || *end || end == text) {
        errno = EINVAL;
        fail("not a number: %s", text);
    }
    return value;
}

static void write_file(const char *path, int flags, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC | flags, 0644);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) fail("write %s", path);
    close(fd);
}

static void make_group(const char *directory) {
    if (mkdir(directory, 0755) < 0) fail("make cgroup %s", directory);
}

static void join_group(const char *directory) {
    char path[4096];
    snprintf(path, sizeof path, "%s/cgroup.procs", directory);
    write_file(path, 0, "0");
}

static void make_directory(const char *path, mode_t mode) {
    char copy[8192];
    snprintf(copy, sizeof copy, "%s", path);
    for (char *slash = copy + strlen(tree) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        if (mkdir(copy, 0755) < 0 && errno != EEXIST) fail("mkdir %s", copy);
        *slash = '/';
    }
    if (mkdir(copy, mode) < 0 && errno != EEXIST) fail("mkdir %s", copy);
    if (chmod(copy, mode) < 0) fail("chmod %s", copy);
}

static void mount_tmpfs(const char *where, const char *bytes, const char *inodes) {
    char options[128];
    if (unshare(CLONE_NEWNS) < 0) fail("unshare mount namespace");
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) fail("make mounts private");
    snprintf(options, sizeof options, "mode=0755,size=%llu,nr_inodes=%llu", number(bytes),
             number(inodes));
    if (mount("trialyard", where, "tmpfs", MS_NOSUID | MS_NODEV, options) < 0)
        fail("mount tmpfs on %s", where);
    snprintf(disk, sizeof disk, "%s", where);
    snprintf(tree, sizeof tree, "%s/root", where);
    if (mkdir(tree, 0755) < 0) fail("mkdir %s", tree);
}

static void mount_overlay(const char *lowers) {
    static char options[64 * 1024], upper[4200], scratch[4200];
    snprintf(upper, sizeof upper, "%s/upper", disk);
    snprintf(scratch, sizeof scratch, "%s/scratch", disk);
    if (mkdir(upper, 0755) < 0 || mkdir(scratch, 0700) < 0) fail("mkdir below %s", disk);
    if (snprintf(options, sizeof options, "lowerdir=%s,upperdir=%s,workdir=%s", lowers, upper,
                 scratch) >= (int)sizeof options) {
        errno = ENAMETOOLONG;
        fail("image layers");
    }
    if (mount("trialyard", tree, "overlay", MS_NOSUID | MS_NODEV, options) < 0)
        fail("mount overlay of %s", lowers);
}

static void make_mount_point(const char *source, const char *target) {
    struct stat status;
    if (stat(target, &status) == 0) return;
    if (stat(source, &status) < 0) fail("stat %s", source);
    if (S_ISDIR(status.st_mode)) {
        make_directory(target, 0755);
        return;
    }
    char parent[8192];
    snprintf(parent, sizeof parent, "%s", target);
    *strrchr(parent, '/') = 0;
    make_directory(parent, 0755);
    int fd = open(target, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) fail("create %s", target);
    close(fd);
}

static void bind(const char *source, const char *path, unsigned long flags) {
    const char *target = in_tree(path);
    make_mount_point(source, target);
    if (mount(source, target, NULL, MS_BIND, NULL) < 0) fail("bind %s on %s", source, path);
    if (mount(NULL, target, NULL, MS_REMOUNT | MS_BIND | MS_NOSUID | flags, NULL) < 0)
        fail("remount %s", path);
}

static void bind_shm(const char *path) {
    char shm[4200];
    snprintf(shm, sizeof shm, "%s/shm", disk);
    if (mkdir(shm, 01777) < 0 || chown(shm, box_uid, box_uid) < 0) fail("mkdir %s", shm);
    bind(shm, path, MS_NODEV);
}

static void mount_devpts(const char *path) {
    if (mount("devpts", in_tree(path), "devpts", MS_NOSUID | MS_NOEXEC,
              "newinstance,ptmxmode=0666,mode=0620") < 0)
        fail("mount devpts");
}

static void own_directory(const char *path, mode_t mode) {
    const char *target = in_tree(path);
    make_directory(target, mode);
    if (chown(target, box_uid, box_uid) < 0) fail("chown %s", path);
}

static void open_next(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) fail("open %s", path);
    if (fd == next_fd) {
        if (fcntl(fd, F_SETFD, 0) < 0) fail("fcntl %s", path);
    } else {
        if (dup2(fd, next_fd) < 0) fail("dup2 %s", path);
        close(fd);
    }
    next_fd++;
}

static void add_environment(char *entry) {
    int at = 0;
    while (environment[at]) at++;
    if (at + 1 >= (int)(sizeof environment / sizeof *environment)) {
        errno = E2BIG;
        fail("--env %s", entry);
    }
    environment[at] = entry;
}

static void enter_tree(void) {
    if (mount(tree, tree, NULL, MS_BIND | MS_REC, NULL) < 0) fail("bind %s", tree);
    if (chdir(tree) < 0 || syscall(SYS_pivot_root, ".", ".") < 0) fail("pivot_root %s", tree);
    if (umount2(".", MNT_DETACH) < 0 || chdir("/") < 0) fail("leave the old root");
    stays_root = 1;
}

static void limit(int resource, rlim_t value) {
    struct rlimit both = {value, value};
    if (setrlimit(resource, &both) < 0) fail("setrlimit");
}

/* Executes one option; returns how many arguments it took. */
static int step(char **argv) {
    const char *name = argv[0];
    if (!strcmp(name, "--group")) return make_group(argv[1]), 2;
    if (!strcmp(name, "--set")) return write_file(argv[1], 0, argv[2]), 3;
    if (!strcmp(name, "--join")) return join_group(argv[1]), 2;
    if (!strcmp(name, "--nofile")) return limit(RLIMIT_NOFILE, number(argv[1])), 2;
    if (!strcmp(name, "--tmpfs")) return mount_tmpfs(argv[1], argv[2], argv[3]), 4;
    if (!strcmp(name, "--overlay")) return mount_overlay(argv[1]), 2;
    if (!strcmp(name, "--dir"))
        return make_directory(in_tree(argv[2]), strtol(argv[1], NULL, 8)), 3;
    if (!strcmp(name, "--own")) return own_directory(argv[2], strtol(argv[1], NULL, 8)), 3;
    if (!strcmp(name, "--file"))
        return write_file(in_tree(argv[1]), O_CREAT | O_TRUNC | O_NOFOLLOW, argv[2]), 3;
    if (!strcmp(name, "--link")) {
        if (symlink(argv[1], in_tree(argv[2])) < 0 && errno != EEXIST) fail("symlink %s", argv[2]);
        return 3;
    }
    if (!strcmp(name, "--ro")) return bind(argv[1], argv[2], MS_RDONLY | MS_NODEV), 3;
    if (!strcmp(name, "--devices"))
        return bind(argv[1], argv[2], MS_RDONLY | MS_NOEXEC), 3;
    if (!strcmp(name, "--shm")) return bind_shm(argv[1]), 2;
    if (!strcmp(name, "--devpts")) return mount_devpts(argv[1]), 2;
    if (!strcmp(name, "--open")) return open_next(argv[1]), 2;
    if (!strcmp(name, "--env")) return add_environment(argv[1]), 2;
    if (!strcmp(name, "--enter")) return enter_tree(), 1;
    if (!strcmp(name, "--uid")) {
        box_uid = number(argv[1]);
        return 2;
    }
    errno = EINVAL;
    fail("unknown option %s", name);
    return 0;
}

static void become_nobody(void) {
    if (box_uid == 0) {
        errno = EPERM;
        fail("refusing to start a box as root");
    }
    if (setgroups(0, NULL) < 0) fail("setgroups");
    if (setresgid(box_uid, box_uid, box_uid) < 0) fail("setresgid");
    if (setresuid(box_uid, box_uid, box_uid) < 0) fail("setresuid");
}

static void reset_signals(void) {
    sigset_t none;
    for (int number = 1; number < NSIG; number++) signal(number, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

int launch_main(int argc, char **argv) {
    int at = 0;
    umask(0);
    reset_signals();
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_LOCKS, LOCKS_MARKER);
    write_file("/proc/self/oom_score_adj", 0, "500");
    while (at < argc && strcmp(argv[at], "--")) at += step(argv + at);
    if (at + 1 >= argc) {
        errno = EINVAL;
        fail("no program after --");
    }
    if (syscall(SYS_close_range, next_fd, ~0U, 0) < 0) fail("close_range");
    umask(022);
    if (chdir("/") < 0) fail("chdir");
    if (!stays_root) become_nobody();
    execve(argv[at + 1], argv + at + 1, environment);
    fail("exec %s", argv[at + 1]);
    return 125;
}
