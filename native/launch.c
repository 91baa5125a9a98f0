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
 *   --map MAP                 from here on, owners of what --overlay, --ro and --devices show
 *                             are mapped: MAP is INSIDE:HOST:COUNT,..., INSIDE an owner as it is
 *                             stored, HOST the host id as which it counts in this box. A HOST
 *                             that begins with '+' counts from the box's own uid, e.g.
 *                             0:+0:65536 (root inside) or 0:0:1000,1000:+0:1 (an ordinary
 *                             user). Whatever the map lacks belongs to nobody. "-": no map
 *   --overlay LOWERS          image layers below a writable layer on that tmpfs, topmost first,
 *                             with ':' between them. With a map their file system must be able
 *                             to map owners; binds fall back to owners as they are
 *   --root                    what is made from here on belongs to root inside: the box's uid
 *   --dir MODE PATH           directory owned by root; parents are made too
 *   --own MODE PATH           directory owned by the box's uid
 *   --own-by ID MODE PATH     directory owned by the user ID of a box with a root inside
 *   --file PATH TEXT          small file owned by root
 *   --link TARGET PATH        symbolic link
 *   --ro SRC PATH             read-only bind mount, no devices, no setuid
 *   --public SRC PATH         the same for a directory of the host's own: what only the host's
 *                             root may read stays closed, whoever owns it in the box
 *   --devices SRC PATH        like --ro, but device nodes work
 *   --shm PATH                shared memory directory, on the same tmpfs
 *   --devpts PATH             private pseudo-terminals
 *   --open PATH               inherited as the next descriptor after CONTROL_FD
 *   --userns                  the map's user namespace is inherited as such a descriptor
 *   --env NAME=VALUE          instead of an empty environment
 *   --uid N                   the unprivileged uid and gid of the box; stands before --map
 *   --view SRC PATH           bind mount on a PATH of the host, for this box's launcher alone
 *   --oci OWNER MAP CONFIG    PROGRAM is an OCI runtime, run by the uid OWNER with this
 *                             config.json; the box's user namespace has this MAP (oci.c)
 *   --move DIR                cgroup that PID 1 is moved to when an OCI runtime has made it
 *   --enter                   make the tree the root and stay root (zygotes only)
 *
 * PATHs are relative to the tree and never lead out of it, whatever links an image or a
 * snapshot holds. The tree is built as root because the sources may lie where nobody else may
 * look.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
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

#include "launch.h"
#include "protocol.h"

static uid_t box_uid;
static int next_fd = CONTROL_FD + 1;
static char *environment[32];
static int stays_root;
static struct oci_box oci;

void fail(const char *format, ...) {
    int error = errno;
    va_list args;
    va_start(args, format);
    fputs("trialyard-box: ", stderr);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, ": %s\n", strerror(error));
    _exit(125);
}

unsigned long long number(const char *text) {
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno || *end || end == text) {
        errno = EINVAL;
        fail("not a number: %s", text);
    }
    return value;
}

static mode_t octal(const char *text) { return strtol(text, NULL, 8); }

static void write_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) fail("write %s", path);
    close(fd);
}

static void make_group(const char *directory) {
    if (mkdir(directory, 0755) < 0) fail("make cgroup %s", directory);
}

static void join_group(const char *directory) {
    char path[4096];
    snprintf(path, sizeof path, "%s/cgroup.procs", directory);
    write_file(path, "0");
}

/* Makes a descriptor the first after those that are kept. */
static int move_to_next(int fd, int flags) {
    if (fd == next_fd) {
        if (fcntl(fd, F_SETFD, flags & O_CLOEXEC ? FD_CLOEXEC : 0) < 0) fail("fcntl");
    } else {
        if (dup3(fd, next_fd, flags) < 0) fail("dup3");
        close(fd);
    }
    return next_fd++;
}

static void open_next(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) fail("open %s", path);
    move_to_next(fd, 0);
}

static void pass_user_namespace(void) {
    int fd = fcntl(tree_map(), F_DUPFD_CLOEXEC, 0);
    if (fd < 0) fail("--userns without a map");
    move_to_next(fd, 0);
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

static void limit(int resource, rlim_t value) {
    struct rlimit both = {value, value};
    if (setrlimit(resource, &both) < 0) fail("setrlimit");
}

static void set_oci(char **argv) {
    oci.owner = number(argv[0]);
    oci.map = argv[1];
    oci.config = argv[2];
}

/* Opened now, because the runtime is not to see the cgroups; it does not inherit it either. */
static void add_move(const char *directory) {
    char path[4300];
    if (oci.num_groups == (int)(sizeof oci.groups / sizeof *oci.groups)) {
        errno = E2BIG;
        fail("--move %s", directory);
    }
    if (oci.num_groups == 0) next_fd = MOVE_FD + 1;
    snprintf(path, sizeof path, "%s/cgroup.procs", directory);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) fail("open %s", path);
    oci.groups[oci.num_groups++] = move_to_next(fd, O_CLOEXEC);
}

/* Executes one option; returns how many arguments it took. */
static int step(char **argv) {
    const char *name = argv[0];
    if (!strcmp(name, "--group")) return make_group(argv[1]), 2;
    if (!strcmp(name, "--set")) return write_file(argv[1], argv[2]), 3;
    if (!strcmp(name, "--join")) return join_group(argv[1]), 2;
    if (!strcmp(name, "--nofile")) return limit(RLIMIT_NOFILE, number(argv[1])), 2;
    if (!strcmp(name, "--tmpfs")) return mount_tmpfs(argv[1], argv[2], argv[3]), 4;
    if (!strcmp(name, "--map")) return set_map(argv[1], box_uid), 2;
    if (!strcmp(name, "--root")) return tree_belongs_to(box_uid), 1;
    if (!strcmp(name, "--userns")) return pass_user_namespace(), 1;
    if (!strcmp(name, "--overlay")) return mount_overlay(argv[1]), 2;
    if (!strcmp(name, "--dir")) return make_directory(argv[2], octal(argv[1])), 3;
    if (!strcmp(name, "--own")) return own_directory(argv[2], octal(argv[1]), box_uid), 3;
    if (!strcmp(name, "--own-by"))
        return own_directory(argv[3], octal(argv[2]), box_uid + number(argv[1])), 4;
    if (!strcmp(name, "--file")) return make_file(argv[1], argv[2]), 3;
    if (!strcmp(name, "--link")) return make_link(argv[1], argv[2]), 3;
    if (!strcmp(name, "--ro")) return bind_read_only(argv[1], argv[2], MS_NODEV), 3;
    if (!strcmp(name, "--public")) return show_public(argv[1], argv[2]), 3;
    if (!strcmp(name, "--devices")) return bind_read_only(argv[1], argv[2], MS_NOEXEC), 3;
    if (!strcmp(name, "--shm")) return bind_shm(argv[1], box_uid), 2;
    if (!strcmp(name, "--devpts")) return mount_devpts(argv[1]), 2;
    if (!strcmp(name, "--open")) return open_next(argv[1]), 2;
    if (!strcmp(name, "--env")) return add_environment(argv[1]), 2;
    if (!strcmp(name, "--view")) {
        if (mount(argv[1], argv[2], NULL, MS_BIND, NULL) < 0) fail("bind %s", argv[1]);
        return 3;
    }
    if (!strcmp(name, "--oci")) return set_oci(argv + 1), 4;
    if (!strcmp(name, "--move")) return add_move(argv[1]), 2;
    if (!strcmp(name, "--enter")) return enter_tree(), stays_root = 1;
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
    write_file("/proc/self/oom_score_adj", "500");
    while (at < argc && strcmp(argv[at], "--")) at += step(argv + at);
    if (at + 1 >= argc) {
        errno = EINVAL;
        fail("no program after --");
    }
    if (syscall(SYS_close_range, next_fd, ~0U, 0) < 0) fail("close_range");
    umask(022);
    if (chdir("/") < 0) fail("chdir");
    if (oci.config) {
        oci.disk = tree_disk();
        oci.runtime = argv + at + 1;
        oci.environment = environment;
        return supervise_oci(&oci);
    }
    if (!stays_root) become_nobody();
    execve(argv[at + 1], argv + at + 1, environment);
    fail("exec %s", argv[at + 1]);
    return 125;
}
